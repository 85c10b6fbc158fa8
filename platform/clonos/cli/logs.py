"""``clonos logs``: the log of a job's drivers, for people, as JSON or as it was written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from clonos.cli.options import Api, Context, JobArgument, Output, Token, connect, echo, seconds, until_interrupted
from clonos.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from clonos.resources.jobs import LogLines
    from clonos.telemetry.log_entries import EpochSpan, LogEntry

HELP: Final = """Show the log of a job's drivers and standbys; -f follows it until the job ends or Ctrl-C.

Each line has the local time, the level, the process with its generation, and the message. \
Consecutive lines of normal epochs are one line.
"""

_TAIL: Final = 200
_MAX_TAIL: Final = 10_000
_STYLES: Final = {"debug": "dim", "info": "", "warning": "bold yellow", "error": "bold red"}


class MinimumLevel(StrEnum):
    """Value of ``--level``."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log.")] = False,
    level: Annotated[MinimumLevel | None, typer.Option(help="Show this level and higher ones only.")] = None,
    search: Annotated[str, typer.Option(metavar="TEXT", help="Show lines with this text only, in any case.")] = "",
    since: Annotated[
        str | None, typer.Option(metavar="AGE", help="Show lines younger than this only: 90s, 10m, 2h, 1d.")
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option(min=0, max=_MAX_TAIL, help=f"Show the last N lines (default: {_TAIL}; {_MAX_TAIL} with --since)."),
    ] = None,
    epochs: Annotated[bool, typer.Option("--epochs", help="Show each line of normal epochs.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Show the lines as they were written.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print parsed lines, one JSON object per line.")] = False,
    output: Annotated[Output, typer.Option("--output", "-o", help="Output format; json: the unparsed lines.")] = (
        Output.TABLE
    ),
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """See `HELP`."""
    from pydantic_core import to_json

    from clonos.cli import show
    from clonos.client.jobs import ENDED
    from clonos.telemetry.log_entries import LogFilter, collapse_epochs

    if raw + as_json + (output is Output.JSON) > 1:
        raise SpecError("--raw, --json and -o json exclude each other.")
    parsed = not raw and output is not Output.JSON
    begun = datetime.now(UTC) - timedelta(seconds=seconds(since, "--since")) if since else None
    count = tail if tail is not None else _MAX_TAIL if since else _TAIL
    out = show.console()

    def write(part: LogLines) -> None:
        if output is Output.JSON:
            show.show_json(part)
        elif as_json:
            for entry in part.entries:
                echo(to_json(entry))
        elif raw:
            for line in part.lines:
                echo(line)
        else:
            shown: Sequence[LogEntry | EpochSpan] = part.entries if epochs else collapse_epochs(part.entries)
            for row in shown:
                out.print(text_of(row))

    with connect(api, token, context) as client, until_interrupted():
        only = LogFilter(None if level is None else level.value, search, begun)
        if follow and client.jobs.get(job).state not in ENDED:
            for part in client.jobs.follow_logs(job, tail=count, only=only, parsed=parsed):
                write(part)
            return
        part = client.jobs.logs(job, tail=count, only=only, parsed=parsed)
        write(part)
        if count and not part.lines and not part.entries:
            echo("No line matches." if only else "The job's drivers have written no log lines.", err=True)


def text_of(shown: LogEntry | EpochSpan) -> Text:
    """An entry with its lines of continuation, or a span of epochs, as readable text."""
    from rich.text import Text

    from clonos.telemetry.log_entries import PROCESSES, EpochSpan

    entry = shown.last if isinstance(shown, EpochSpan) else shown
    generation = f" g{entry.generation}" if entry.generation else ""
    text = Text.assemble(
        (f"{_clock(entry.time)}  ", "dim"),
        (f"{entry.level:<7}  ", _STYLES[entry.level]),
        (f"{PROCESSES[entry.process] + generation:<16}  ", "dim"),
        (str(shown), "dim") if isinstance(shown, EpochSpan) else (entry.message, _STYLES[entry.level]),
    )
    if not isinstance(shown, EpochSpan):
        for line in entry.lines:
            text.append(f"\n    {line}", "dim")
    return text


def _clock(moment: datetime | None) -> str:
    """A time in the zone of this machine; with the date, unless it is today."""
    if moment is None:
        return " " * 8
    local = moment.astimezone()
    return local.strftime("%H:%M:%S" if local.date() == datetime.now().astimezone().date() else "%m-%d %H:%M:%S")
