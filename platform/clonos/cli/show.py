"""Prints response bodies of the REST API on a terminal, in a pipe, or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel
from pydantic_core import to_json
from rich.console import Console
from rich.table import Table
from rich.text import Text

from clonos.cli.options import Listing, echo
from clonos.resources.base import Page
from clonos.resources.figures import age as age
from clonos.resources.figures import clock as clock
from clonos.resources.figures import duration as duration
from clonos.resources.figures import number as number
from clonos.resources.figures import size as size
from clonos.telemetry.printable import console as printable_console

T = TypeVar("T", bound=BaseModel)
Cell = str | Text | None
Columns = Mapping[str, Callable[[T], Cell]]

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
    """A console that prints plain text unless it is a terminal."""
    out = printable_console(stderr=stderr, soft_wrap=True)
    if not out.is_terminal:
        out.width = _WIDE
    return out


def show_json(value: BaseModel | Mapping[str, Any] | Sequence[Any]) -> None:
    """Print a REST body as one JSON line."""
    echo(to_json(value, by_alias=True))


def show_list(page: Page[T], output: Listing, columns: Columns[T], name: Callable[[T], str], *, none: str) -> None:
    """Print a list.

    Args:
        page: The page of the REST API.
        output: Output format.
        columns: Cell function per title; None is shown as a dash. Columns whose title ends with ``#`` align right.
        name: Text of a row for `Listing.NAME`.
        none: Message on stderr for an empty list.
    """
    if output is Listing.JSON:
        show_json(page)
    elif output is Listing.NAME:
        for row in page.data:
            echo(name(row))
    elif not page.data:
        echo(none, err=True)
    else:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in columns:
            table.add_column(title.removesuffix("#"), justify="right" if title.endswith("#") else "left")
        for row in page.data:
            table.add_row(*(cell if (cell := column(row)) is not None else "-" for column in columns.values()))
        console().print(table)
        if page.has_more:
            echo("More results exist; raise --limit.", err=True)


def state(name: str) -> Text:
    """The name of a state (of a job, host, standby or cluster) in its colour."""
    return Text(name, _STYLES.get(name, ""))


def short(text: str, width: int = 60) -> str:
    """`text` as one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
