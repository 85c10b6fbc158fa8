"""``clonos events``: what happened in the control plane."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli.options import Api, Output, Token, connect, seconds, until_interrupted

if TYPE_CHECKING:
    from rich.text import Text

    from clonos.resources.service import Event


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    job: Annotated[str | None, typer.Option(help="Of this job only (name or id).")] = None,
    types: Annotated[
        list[str] | None, typer.Option("--type", help="Of this type only (job.state, or job); may be repeated.")
    ] = None,
    after: Annotated[int, typer.Option(min=0, help="After this number only.")] = 0,
    since: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="No older than this: 90s, 10m, 2h, 1d. Without --tail all of these."),
    ] = None,
    tail: Annotated[
        int | None, typer.Option(min=0, max=1000, help="Begin with the last so many (default 50); 0: with none.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Begin with all that are kept.")] = False,
    output: Annotated[Output, typer.Option("--output", "-o", help="json: one event of the API a line.")] = Output.TABLE,
    api: Api = None,
    token: Token = None,
) -> None:
    """What happened, oldest first: the newest events, and with -f those that come."""
    from clonos.cli import show

    out = show.console()

    def tell(event: Event) -> None:
        if output is Output.JSON:
            show.show_json(event)
        else:
            out.print(line_of(event))

    with connect(api, token) as client, until_interrupted():
        begun = datetime.now(UTC) - timedelta(seconds=seconds(since, "--since")) if since else None
        # Where to follow from is read first, or what happens meanwhile would be missed.
        newest, last = client.events.newest(max(tail or 50, 1), job=job, types=types, after=after, since=begun)
        if everything or (since and tail is None):
            known = client.events.history(job=job, types=types, after=after, since=begun).data
            newest, last = known, max([last, *(event.seq for event in known)])
        for event in newest if tail != 0 else []:
            tell(event)
        if follow:
            for event in client.events.follow(job=job, types=types, after=last):
                tell(event)


def line_of(event: Event) -> Text:
    """One event for people."""
    from rich.text import Text

    from clonos.cli.show import clock, short

    told = " ".join(f"{name}={short(str(value), 80)}" for name, value in event.data.items() if value is not None)
    about = " ".join(filter(None, (event.job, event.agent)))
    return Text.assemble(
        (f"{event.seq:>6}  {clock(event.at)}  ", "dim"), (f"{event.type:<18} ", "bold"), (f"{about}  ", "dim"), told
    )
