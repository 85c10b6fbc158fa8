"""Prints response bodies of the REST API on a terminal, in a pipe, or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from clonos.cli.options import echo
from clonos.resources.figures import age as age
from clonos.resources.figures import clock as clock
from clonos.resources.figures import duration as duration
from clonos.resources.figures import number as number
from clonos.resources.figures import size as size
from clonos.telemetry.printable import console as printable_console

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

    Cell = str | Text | None
Body = TypeVar("Body")
Row = TypeVar("Row")

# A narrow terminal wraps lines, a pipe has no edge.
_WIDE: Final = 1_000
_STYLES: Final = {
    **dict.fromkeys(("RUNNING", "FINISHED", "COMPLETED", "READY", "ok"), "bold green"),
    **dict.fromkeys(("STOPPED", "CANCELED", "CREATED", "REMOVED", "EXITED", "UNCHECKED"), "bold"),
    **dict.fromkeys(("STARTING", "RECOVERING", "STOPPING", "CANCELLING", "PENDING", "DRAINING"), "bold yellow"),
    **dict.fromkeys(("IN_PROGRESS", "DELETING", "WARMING", "STALE", "PROMOTING", "CHECKING", "warn"), "bold yellow"),
    **dict.fromkeys(("FAILED", "LOST", "INCOMPATIBLE", "UNREACHABLE", "denied", "fail"), "bold red"),
}


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints plain text unless it is a terminal."""
    out = printable_console(stderr=stderr, soft_wrap=True)
    if not out.is_terminal:
        out.width = _WIDE
    return out


def show_json(value: BaseModel | Mapping[str, Any] | Sequence[Any]) -> None:
    """Print a REST body as one JSON line."""
    from pydantic_core import to_json

    echo(to_json(value, by_alias=True))


def show(body: Body, text: Callable[[Body], str | RenderableType], *, as_json: bool) -> None:
    """Print a body as one JSON line, or as its `text`, which is plain or of Rich."""
    if as_json:
        show_json(body)  # type: ignore[arg-type]
    elif isinstance(shown := text(body), str):
        echo(shown)
    else:
        console().print(shown)


def table(rows: Iterable[Row], columns: Mapping[str, Callable[[Row], Cell]]) -> Table:
    """Lay out rows in columns: title → cell. None is shown as a dash; a title with ``#`` at its end aligns right."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="dim")
    for title in columns:
        shown.add_column(title.removesuffix("#"), justify="right" if title.endswith("#") else "left")
    for row in rows:
        shown.add_row(*(cell if (cell := column(row)) is not None else "-" for column in columns.values()))
    return shown


def facts(rows: Mapping[str, Cell]) -> Table:
    """Lay out one resource: a line for each title and its value; None is shown as a dash."""
    from rich.table import Table

    shown = Table.grid(padding=(0, 2))
    shown.add_column(style="dim")
    shown.add_column()
    for title, value in rows.items():
        shown.add_row(title, value if value is not None else "-")
    return shown


def state(name: str) -> Text:
    """Return the name of a state (of a job, host, standby or cluster) in its colour."""
    from rich.text import Text

    return Text(name, _STYLES.get(name, ""))


def short(text: str, width: int = 60) -> str:
    """Return `text` as one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
