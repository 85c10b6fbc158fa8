"""Every ``--help`` has examples that the command line itself accepts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from clonos.cli.app import app
from clonos.cli.examples import EXAMPLES

ROOT: Any = typer.main.get_command(app)


def commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """All commands that can be run, with their names behind `clonos`."""
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{path} {name}".strip())
    if not hasattr(command, "commands") and not command.hidden:
        yield path, command


COMMANDS = dict(commands(ROOT))


def test_each_command_has_one_to_three_examples() -> None:
    assert set(EXAMPLES) == {"", *COMMANDS}
    for examples in EXAMPLES.values():
        assert 1 <= len(examples) <= 3
        # The help of a terminal of 80 columns indents them by three.
        assert all(len(example) <= 76 for example in examples)


@pytest.mark.parametrize("path", sorted(COMMANDS))
def test_the_examples_of_a_command_are_commands(path: str) -> None:
    for example in EXAMPLES[path]:
        own = [part for part in re.split(r"\s(?:\||\|\||<|>)\s", example) if f"clonos {path}" in part]
        assert own, f"{example!r} does not run clonos {path}"
        words = shlex.split(own[-1].partition(f"clonos {path}")[2])
        if "xargs" in own[-1]:
            words.append("NAME")
        context = COMMANDS[path].make_context(path, words)
        assert not context.args


def test_every_help_has_its_examples() -> None:
    for path, command in COMMANDS.items():
        assert [line.strip() for line in command.epilog.splitlines()[2:]] == list(EXAMPLES[path])


@pytest.mark.parametrize("path", ["", "job", "kafka", "job start", "login"])
def test_a_terminal_shows_the_examples(path: str) -> None:
    help_text = CliRunner().invoke(app, [*path.split(), "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).stdout
    shown = [line.strip() for line in help_text.partition(" Examples:")[2].splitlines() if line.strip()]
    assert shown
    assert all("clonos " in line for line in shown)
    assert set(EXAMPLES.get(path, shown)) == set(shown)
