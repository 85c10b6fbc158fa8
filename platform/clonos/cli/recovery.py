"""``clonos recovery``: from failures to the first output after them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli.options import Api, JobArgument, Limit, Listed, Listing, Lists, Output, Token, connect
from clonos.errors import NotFound
from clonos.resources.recovery_words import CAUSES, OUTCOMES, PHASES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from clonos.resources.base import Page
    from clonos.resources.jobs import Recovery

app = typer.Typer(no_args_is_help=True, help="What a job recovered from, and how.")


@app.command("ls")
def list_recoveries(
    job: JobArgument, limit: Limit = 50, output: Lists = Listing.TABLE, api: Api = None, token: Token = None
) -> None:
    """A job's recoveries, newest first."""
    with connect(api, token) as client:
        show_recoveries(client.jobs.recoveries(job, limit=limit), output)


def show_recoveries(page: Page[Recovery], output: Listing) -> None:
    """Print them as a list."""
    from clonos.cli import show

    show.show_list(
        page,
        output,
        {
            "id": lambda one: one.id,
            "started": lambda one: show.clock(one.started_at),
            "cause": lambda one: one.cause,
            "generation": lambda one: f"{one.failed_generation} → {one.generation or '…'}",
            "host": lambda one: _where(one),
            "outcome": lambda one: one.outcome or "…",
            "gap#": lambda one: show.duration(one.gap_ms),
            "replayed#": lambda one: show.number(one.replayed_records),
            "skipped lanes#": lambda one: show.number(one.skipped_lanes),
            "error": lambda one: one.failure.error if one.failure else "",
        },
        lambda one: one.id,
        none="It had nothing to recover from.",
    )


def _where(recovery: Recovery) -> str:
    if recovery.to_agent in (None, recovery.from_agent):
        return recovery.from_agent
    return f"{recovery.from_agent} → {recovery.to_agent}"


@app.command()
def explain(
    job: JobArgument,
    recovery: Annotated[
        str | None, typer.Argument(metavar="[RECOVERY]", help="Its id (default: the newest).", show_default=False)
    ] = None,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
) -> None:
    """What happened in one recovery, phase by phase, in words."""
    from rich.console import Group

    from clonos.cli import show

    with connect(api, token) as client:
        if recovery is not None:
            found = client.jobs.recovery(job, recovery)
        else:
            newest = client.jobs.recoveries(job, limit=1).data
            if not newest:
                raise NotFound(f"The job {job} had nothing to recover from.", hint="nothing to do.")
            found = newest[0]
    if output is Output.JSON:
        show.show_json(found)
    else:
        show.console().print(Group(*_told(found)))


def _told(recovery: Recovery) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    from clonos.cli import show

    cause = CAUSES.get(recovery.cause, recovery.cause)
    yield Text.assemble(
        f"{show.clock(recovery.started_at)}: generation {recovery.failed_generation} on {recovery.from_agent} ended: ",
        (f"{cause}.", "bold yellow"),
    )
    if recovery.failure is not None:
        yield Text(f"Its error was {recovery.failure.error}: {recovery.failure.what}")
    if recovery.generation is None:
        yield Text("No newer generation has claimed the causal log yet; nothing is published meanwhile.")
    else:
        place = "the same host" if recovery.to_agent in (None, recovery.from_agent) else f"{recovery.to_agent}"
        who = "a standby" if recovery.standby else "a new driver"
        yield Text(
            f"Generation {recovery.generation}, {who} on {place}, took over;"
            " from then on the old one could not publish."
        )
        yield Text(_replayed(recovery))
    yield Text()
    longest = max((phase.duration_ms for phase in recovery.phases), default=0.0)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(min_width=20)
    table.add_column(style="dim")
    for phase in recovery.phases:
        bar = "█" * max(1, round(20 * phase.duration_ms / longest)) if longest else ""
        table.add_row(phase.name, show.duration(phase.duration_ms), bar, PHASES.get(phase.name, ""))
    if recovery.phases:
        yield table
        yield Text()
    if recovery.ended_at is None:
        yield Text(f"It still goes on, since {show.age(recovery.started_at)}.", "bold yellow")
    elif recovery.gap_ms is None:
        yield Text(f"It ended: {OUTCOMES.get(recovery.outcome or '', recovery.outcome)}.")
    else:
        yield Text.assemble("Without output: ", (str(show.duration(recovery.gap_ms)), "bold"), ".")


def _replayed(recovery: Recovery) -> str:
    from clonos.cli.show import number

    if not recovery.replayed_records and not recovery.skipped_lanes:
        return "No epoch was in doubt: it went on behind the last one that was published."
    told = f"The epoch in doubt ({number(recovery.replayed_records)} records) was replayed"
    if recovery.replayed_determinants:
        told += f" with {number(recovery.replayed_determinants)} recorded answers"
    if recovery.skipped_lanes:
        told += f"; {number(recovery.skipped_lanes)} lanes of it were published already and were not published again"
    return told + "."
