"""``clonos events``: the events of the control plane."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli import completion
from clonos.cli.options import Api, Context, Output, Token, connect, seconds, until_interrupted

if TYPE_CHECKING:
    from rich.text import Text

    from clonos.resources.service import Event


def events(
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
    output: Annotated[
        Output, typer.Option("--output", "-o", help="Output format; json: one API event per line.")
    ] = Output.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Show the newest events, oldest first; -f follows new ones."""
    from clonos.cli import show

    out = show.console()

    def write(event: Event) -> None:
        if output is Output.JSON:
            show.show_json(event)
        else:
            out.print(line_of(event))

    with connect(api, token, context) as client, until_interrupted():
        begun = datetime.now(UTC) - timedelta(seconds=seconds(since, "--since")) if since else None
        # The start of the following is read first, so that no event between the two requests is lost.
        newest, last = client.events.newest(max(tail or 50, 1), job=job, types=types, after=after, since=begun)
        if everything or (since and tail is None):
            newest = client.events.history(job=job, types=types, after=after, since=begun).data
            last = max([last, *(event.seq for event in newest)])
        for event in newest if tail != 0 else []:
            write(event)
        if follow:
            for event in client.events.follow(job=job, types=types, after=last):
                write(event)


def line_of(event: Event) -> Text:
    """One event as a line: number, time, type and sentence."""
    from rich.text import Text

    from clonos.cli.show import clock

    return Text.assemble((f"{event.seq:>6}  {clock(event.at)}  {event.type:<18}  ", "dim"), event.text)
