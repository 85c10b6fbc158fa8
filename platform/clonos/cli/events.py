"""``clonos events``: what happened in the control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli.options import Api, Output, Token, connect, until_interrupted

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
    tail: Annotated[int, typer.Option(min=0, help="The last so many; 0: all that are kept.")] = 50,
    output: Annotated[Output, typer.Option("--output", "-o", help="json: one event of the API a line.")] = Output.TABLE,
    api: Api = None,
    token: Token = None,
) -> None:
    """What happened, oldest first."""
    from clonos.cli import show

    out = show.console()

    def tell(event: Event) -> None:
        if output is Output.JSON:
            show.show_json(event)
        else:
            out.print(line_of(event))

    with connect(api, token) as client, until_interrupted():
        known = client.events.history(job=job, types=types, after=after).data
        for event in known[-tail:] if tail else known:
            tell(event)
        if follow:
            for event in client.events.follow(job=job, types=types, after=known[-1].seq if known else after):
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
