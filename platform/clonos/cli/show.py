"""Answers of the API on a terminal, in a pipe, or as JSON."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import typer
from pydantic import BaseModel
from pydantic_core import to_json
from rich.console import Console
from rich.table import Table
from rich.text import Text

from clonos.cli.options import Listing
from clonos.resources.base import Page

T = TypeVar("T", bound=BaseModel)
Cell = str | Text | None
Columns = Mapping[str, Callable[[T], Cell]]

# A narrow terminal wraps lines, a pipe has no edge.
_WIDE: Final = 1_000
_STYLES: Final = {
    **dict.fromkeys(("RUNNING", "FINISHED", "COMPLETED", "READY", "ok"), "bold green"),
    **dict.fromkeys(("STOPPED", "CANCELED", "CREATED", "REMOVED", "EXITED"), "bold"),
    **dict.fromkeys(("STARTING", "RECOVERING", "STOPPING", "CANCELLING", "PENDING", "DRAINING"), "bold yellow"),
    **dict.fromkeys(("IN_PROGRESS", "DELETING", "WARMING", "STALE", "PROMOTING", "warn"), "bold yellow"),
    **dict.fromkeys(("FAILED", "LOST", "denied", "fail"), "bold red"),
}


def console(*, stderr: bool = False) -> Console:
    """Plain where no one watches."""
    found = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if not found.is_terminal:
        found.width = _WIDE
    return found


def json_line(value: BaseModel | Mapping[str, Any] | Sequence[Any]) -> str:
    """A body of the API as one line; no field is left out."""
    return to_json(value, by_alias=True).decode()


def show_json(value: BaseModel | Mapping[str, Any] | Sequence[Any]) -> None:
    """Print it."""
    typer.echo(json_line(value))


def show_list(page: Page[T], output: Listing, columns: Columns[T], name: Callable[[T], str], *, none: str) -> None:
    """Print a list.

    Args:
        page: As the API gave it.
        output: How.
        columns: Title → what a row has there; None is shown as a dash. Titles that end with ``#`` are numbers.
        name: What `Listing.NAME` prints of each.
        none: What is said on stderr where the list is empty.
    """
    if output is Listing.JSON:
        show_json(page)
    elif output is Listing.NAME:
        for one in page.data:
            typer.echo(name(one))
    elif not page.data:
        typer.echo(none, err=True)
    else:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in columns:
            table.add_column(title.removesuffix("#"), justify="right" if title.endswith("#") else "left")
        for one in page.data:
            table.add_row(*(cell if (cell := column(one)) is not None else "-" for column in columns.values()))
        console().print(table)
        if page.has_more:
            typer.echo("There are more: raise --limit.", err=True)


def state(name: str) -> Text:
    """A state in its colour."""
    return Text(name, _STYLES.get(name, ""))


def clock(moment: dt.datetime | None) -> str | None:
    """A time, in UTC."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%SZ") if moment is not None else None


def age(moment: dt.datetime | None, now: dt.datetime | None = None) -> str | None:
    """How long ago."""
    if moment is None:
        return None
    return duration(max(0.0, ((now or dt.datetime.now(dt.UTC)) - moment).total_seconds() * 1000))


def duration(ms: float | None) -> str | None:
    """A duration in the two units that matter."""
    if ms is None:
        return None
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def size(count: float | None) -> str | None:
    """Bytes."""
    if count is None:
        return None
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def number(count: float | None) -> str | None:
    """A count with its thousands."""
    return f"{count:,.0f}".replace(",", " ") if count is not None else None


def short(text: str, width: int = 60) -> str:
    """One line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
