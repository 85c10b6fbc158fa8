"""Text from elsewhere is printed without control sequences and without an interpretation as markup."""

from __future__ import annotations

import ast
import io
import json
from pathlib import Path

import pytest
from rich.live import Live
from rich.table import Table
from rich.text import Text

import clonos
from clonos.telemetry.printable import console, printable, printable_json

HOSTILE = "\x1b]0;PWNED\x07\x1b[2J[/x] [bold]b[/] :smile: \x9b31m\u202egpj.exe\x7f"
SHOWN = "[/x] [bold]b[/] :smile: \ufffd31m\ufffdgpj.exe\ufffd"


def test_control_sequences_are_removed() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable("two\n\tlines") == "two\n\tlines"
    assert printable("Grüße, 你好") == "Grüße, 你好"
    assert printable("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\") == "link"


def test_json_keeps_its_value() -> None:
    text = json.dumps({"a": HOSTILE}, ensure_ascii=False)
    assert printable_json(text).isprintable()
    assert json.loads(printable_json(text)) == {"a": HOSTILE}


@pytest.mark.parametrize("as_text", [False, True])
def test_consoles_show_text_as_it_is(as_text: bool) -> None:
    """In lines, cells and live displays; a colour of our own remains."""
    file = io.StringIO()
    out = console(file=file, width=200)
    out._force_terminal = True
    shown = Text(HOSTILE) if as_text else HOSTILE
    out.print(shown)
    table = Table(box=None)
    table.add_column("title [/x]")
    table.add_row(shown)
    out.print(table, Text("ours", "bold red"))
    with Live(table, console=out, auto_refresh=False):
        pass
    lines = file.getvalue()
    assert lines.count("[/x] [bold]b[/] :smile:") >= 3
    assert "ours" in lines
    for executed in ("\x1b]", "\x1b[2J", "\x9b", "\x07", "\u202e"):
        assert executed not in lines


CALLS = {"echo", "secho", "print", "Console", "style", "get_console", "print_json", "print_exception"}


@pytest.mark.parametrize("folder", ["cli", "demo", "doctor", "spark"])
def test_commands_print_only_printable_text(folder: str) -> None:
    """Commands print with `clonos.cli.options.echo` and `clonos.telemetry.printable.console` only."""
    raw = []
    for file in sorted(Path(clonos.__path__[0], folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            module, _, name = called.rpartition(".")
            direct = name in CALLS and module in ("", "typer", "click", "rich", "rich.console") and called != "echo"
            written = name in ("write", "writelines") and module in ("sys.stdout", "sys.stderr", "sys.stdout.buffer")
            undrawn = called == "Live" and not any(keyword.arg == "console" for keyword in node.keywords)
            if direct or written or undrawn:
                raw.append(f"{file.name}:{node.lineno}: {ast.unparse(node)[:80]}")
    allowed = [line for line in raw if line.startswith("options.py") and "typer.echo(shown" in line]
    assert raw == allowed
