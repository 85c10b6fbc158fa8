"""What a command does with the answer to its question, and without one."""

from __future__ import annotations

import io

import pytest
import typer

from clonos.cli.options import confirm
from clonos.errors import SpecError


def test_without_an_answer_the_error_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(SpecError, match="Resolve it") as caught:
        confirm("Resolve it?")
    assert "--yes" in caught.value.hint
    assert caught.value.kept == "nothing was changed."


@pytest.mark.parametrize(("answer", "agreed"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_only_yes_continues(monkeypatch: pytest.MonkeyPatch, answer: str, *, agreed: bool) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    if agreed:
        confirm("Resolve it?")
    else:
        with pytest.raises(typer.Abort):
            confirm("Resolve it?")
