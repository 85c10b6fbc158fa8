"""Every command that a hint, the dashboard or a document names exists, with its options."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer

from clonos.cli.app import app

ROOT: Final = Path(__file__).parents[3]
COMMAND: Final = typer.main.get_command(app)
# Between backticks or in <code>, or a line of a shell block.
_NAMED: Final = re.compile(
    r"(?:`|<code>)\$?\s*(clonos [^`<]+?)(?:`|</code>)|^\s*(?:\$ )?(clonos (?!\|).+)$", re.MULTILINE
)
_FENCE: Final = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_SHELL: Final = {"", "sh", "shell", "bash", "console", "text"}
_END: Final = re.compile(r"\s(?:#|\||&&|;|>|2>|<)\s?.*$| *\\$")


def named_in(text: str, *, fences_only_lines: bool) -> Iterator[str]:
    for match in _NAMED.finditer(text):
        if match[1]:
            yield match[1]
        elif not fences_only_lines:
            yield match[2]


def texts(source: Path) -> Iterator[str]:
    """The texts of a module; what an f-string computes is an argument X."""
    tree = ast.parse(source.read_text())
    parts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts |= {id(value) for value in node.values}
            yield "".join(str(value.value) if isinstance(value, ast.Constant) else "X" for value in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def collected() -> Iterator[tuple[str, str]]:
    for folder in ("platform/clonos", "api/clonos_api", "sinks", "connectors"):
        for source in sorted((ROOT / folder).rglob("*.py")):
            for text in texts(source):
                for command in named_in(text, fences_only_lines=True):
                    yield source.relative_to(ROOT).as_posix(), command
    dashboard = ROOT / "api/clonos_api/dashboard"
    for page in sorted([*dashboard.rglob("templates/*.html"), *dashboard.glob("static/*.js")]):
        for command in named_in(page.read_text(), fences_only_lines=True):
            yield page.relative_to(ROOT).as_posix(), command
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")]
    documents += [*ROOT.glob("docker/*/README.md"), *ROOT.glob("examples/*/README.md")]
    for document in sorted(page for page in documents if page.name != "CHANGELOG.md"):
        text = document.read_text()
        for command in named_in(_FENCE.sub("", text), fences_only_lines=True):
            yield document.relative_to(ROOT).as_posix(), command
        for fence in (body for language, body in _FENCE.findall(text) if language in _SHELL):
            for command in named_in(fence, fences_only_lines=False):
                yield document.relative_to(ROOT).as_posix(), command


def problem(command: str) -> str | None:
    """Why the command line would not parse; None if it would."""
    line = _END.sub("", re.sub(r"\{\{.*?\}\}|\{%.*?%\}", "X", command))
    line = re.sub(r"[\[\]()]", " ", line).replace("…", " ")
    try:
        words = shlex.split(line)[1:]
    except ValueError:
        words = line.split()[1:]
    current: Any = COMMAND
    while words and hasattr(current, "commands") and not words[0].startswith("-"):
        name = words.pop(0)
        alternatives = name.split("|") if "|" in name else name.split("/")
        for alternative in alternatives:
            if alternative not in current.commands:
                return f"{current.name} has no command {alternative!r}"
        current = current.commands[alternatives[0]]
    known = {option for parameter in current.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        option = word.partition("=")[0].rstrip(",.;:")
        if re.fullmatch(r"--?[a-z][a-z-]*", option) and option not in known | {"--help"}:
            return f"{current.name} has no option {option}"
    return None


NAMED: Final = sorted(set(collected()))


def test_the_collection_finds_hints_pages_and_documents() -> None:
    files = {file for file, _ in NAMED}
    page = "api/clonos_api/dashboard/templates/job_tab_checkpoints.html"
    assert {"platform/clonos/errors/user.py", page, "README.md"} <= files
    assert ("docs/runbook/JobFailed.md", "clonos job inspect JOB") in NAMED, "in an indented block"
    assert {"docs/start/platform.md", "docker/README.md", "examples/enrich/README.md"} <= files


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("clonos job start X", False),
        ("clonos job begin X", True),
        ("clonos job stop X --quickly", True),
        ("clonos submit … --standbys 1", False),
        ("clonos checkpoint ls|show", True),
    ],
)
def test_a_wrong_command_is_seen(command: str, wrong: bool) -> None:
    assert (problem(command) is not None) == wrong


def test_every_named_command_exists() -> None:
    wrong = [f"{file}: {command}: {why}" for file, command in NAMED if (why := problem(command))]
    assert not wrong, "\n".join(wrong)
