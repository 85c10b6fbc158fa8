"""Fixtures of the tests without Kafka and Spark."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from clonos.lint import Report, lint
from support.linting import HEAD, Lint


@pytest.fixture
def linted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lint:
    """Lints a job file that starts with `HEAD`; further files lie beside it."""
    monkeypatch.chdir(tmp_path)

    def run(source: str, *, folder: bool = False, head: str = HEAD, **files: str) -> Report:
        for name, text in {"job": head + textwrap.dedent(source), **files}.items():
            file = tmp_path / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(text))
        return lint([tmp_path if folder else tmp_path / "job.py"])

    return run
