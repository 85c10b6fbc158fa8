"""``clonos logs`` and ``clonos events``: the log of a job's drivers, and the events of the control plane."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from clonos.cli import completion, show
from clonos.cli.options import JobArgument, Output, before_now, echo, until_interrupted
from clonos.cli.remote import Call, remote
from clonos.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from clonos.resources.jobs import LogLines
    from clonos.resources.service import Event
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


@remote(output=Annotated[Output, typer.Option("--output", "-o", help="Output format; json: the unparsed lines.")])
def logs(
    call: Call,
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
) -> None:
    """See `HELP`."""
    from pydantic_core import to_json

    from clonos.client.jobs import ENDED
    from clonos.telemetry.log_entries import LogFilter, collapse_epochs

    if raw + as_json + call.as_json > 1:
        raise SpecError("--raw, --json and -o json exclude each other.")
    jobs, out = call.client.jobs, show.console()
    parsed = not raw and not call.as_json
    only = LogFilter(None if level is None else level.value, search, before_now(since, "--since"))
    count = tail if tail is not None else _MAX_TAIL if since else _TAIL

    def write(part: LogLines) -> None:
        if call.as_json:
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

    with until_interrupted():
        if follow and jobs.get(job).state not in ENDED:
            for part in jobs.follow_logs(job, tail=count, only=only, parsed=parsed):
                write(part)
            return
        part = jobs.logs(job, tail=count, only=only, parsed=parsed)
        write(part)
        if count and not part.lines and not part.entries:
            echo("No line matches." if only else "The job's drivers have written no log lines.", err=True)


def text_of(shown: LogEntry | EpochSpan) -> Text:
    """Return an entry with its lines of continuation, or a span of epochs, as readable text."""
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
    """Return a time in the zone of this machine; with the date, unless it is today."""
    if moment is None:
        return " " * 8
    local = moment.astimezone()
    return local.strftime("%H:%M:%S" if local.date() == datetime.now().astimezone().date() else "%m-%d %H:%M:%S")


@remote(output=Annotated[Output, typer.Option("--output", "-o", help="Output format; json: one API event per line.")])
def events(
    call: Call,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow new events until Ctrl-C.")] = False,
    job: Annotated[
        str | None, typer.Option(help="Show events of this job only (name or id).", autocompletion=completion.jobs)
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", help="Show this type only (job.state, or the prefix job); may be repeated."),
    ] = None,
    after: Annotated[int, typer.Option(min=0, help="Show events after this sequence number only.")] = 0,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="AGE", help="Show events younger than this: 90s, 10m, 2h, 1d. All of them, unless --tail is set."
        ),
    ] = None,
    tail: Annotated[int | None, typer.Option(min=0, max=1000, help="Show the last N events (default: 50).")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show all stored events first.")] = False,
) -> None:
    """Show the newest events, oldest first; -f follows new ones."""
    out = show.console()

    def write(event: Event) -> None:
        if call.as_json:
            show.show_json(event)
        else:
            out.print(line_of(event))

    stored, begun = call.client.events, before_now(since, "--since")
    with until_interrupted():
        # The start of the following is read first, so that no event between the two requests is lost.
        newest, last = stored.newest(max(tail or 50, 1), job=job, types=types, after=after, since=begun)
        if everything or (since and tail is None):
            newest = stored.history(job=job, types=types, after=after, since=begun).data
            last = max([last, *(event.seq for event in newest)])
        for event in newest if tail != 0 else []:
            write(event)
        if follow:
            for event in stored.follow(job=job, types=types, after=last):
                write(event)


def line_of(event: Event) -> Text:
    """Return one event as a line: number, time, type and sentence."""
    from rich.text import Text

    return Text.assemble((f"{event.seq:>6}  {show.clock(event.at)}  {event.type:<18}  ", "dim"), event.text)
