"""``clonos recovery``: the recoveries of a job. Each lasts from a failure to the first committed epoch after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli.options import Api, Context, JobArgument, Limit, Listed, Listing, Lists, Output, Token, connect
from clonos.errors import NotFound
from clonos.resources.recovery_descriptions import CAUSES, OUTCOMES, PHASES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from clonos.resources.jobs import Recovery

app = typer.Typer(no_args_is_help=True, help="Show the recoveries of a job.")


@app.command("ls")
def list_recoveries(
    job: JobArgument,
    limit: Limit = 50,
    output: Lists = Listing.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """List the recoveries of a job, newest first."""
    from clonos.cli import show
    from clonos.cli.picture import hosts_of

    with connect(api, token, context) as client:
        page = client.jobs.recoveries(job, limit=limit)
    show.show_list(
        page,
        output,
        {
            "id": lambda row: row.id,
            "started": lambda row: show.clock(row.started_at),
            "cause": lambda row: row.cause,
            "generation": lambda row: f"{row.failed_generation} → {row.generation or '…'}",
            "host": hosts_of,
            "outcome": lambda row: row.outcome or "…",
            "downtime#": lambda row: show.duration(row.downtime_ms),
            "replayed#": lambda row: show.number(row.replayed_records),
            "skipped lanes#": lambda row: show.number(row.skipped_lanes),
            "error": lambda row: row.failure.error if row.failure else "",
        },
        lambda row: row.id,
        none="The job has no recoveries.",
    )


@app.command()
def explain(
    job: JobArgument,
    recovery: Annotated[
        str | None,
        typer.Argument(metavar="[RECOVERY]", help="Id of the recovery (default: the newest).", show_default=False),
    ] = None,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Explain one recovery phase by phase."""
    from rich.console import Group

    from clonos.cli import show

    with connect(api, token, context) as client:
        if recovery is not None:
            shown = client.jobs.recovery(job, recovery)
        else:
            newest = client.jobs.recoveries(job, limit=1).data
            if not newest:
                raise NotFound(f"The job {job} has no recoveries.", hint="nothing to do.")
            shown = newest[0]
    if output is Output.JSON:
        show.show_json(shown)
    else:
        show.console().print(Group(*_lines(shown)))


def _lines(recovery: Recovery) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    from clonos.cli import show

    cause = CAUSES.get(recovery.cause, recovery.cause)
    yield Text.assemble(
        f"{show.clock(recovery.started_at)}: generation {recovery.failed_generation} on {recovery.from_host} failed: ",
        (f"{cause}.", "bold yellow"),
    )
    if recovery.failure is not None:
        yield Text(f"Its error was {recovery.failure.error}: {recovery.failure.what}")
    if recovery.generation is None:
        yield Text("No newer generation has claimed the causal log yet, so nothing is published.")
    else:
        host = "the same host" if recovery.to_host in (None, recovery.from_host) else f"{recovery.to_host}"
        driver = "a standby" if recovery.standby else "a new driver"
        yield Text(f"Generation {recovery.generation}, {driver} on {host}, took over and fenced the old generation.")
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
        yield Text(f"In progress for {show.age(recovery.started_at)}.", "bold yellow")
    elif recovery.downtime_ms is None:
        yield Text(f"Outcome: {OUTCOMES.get(recovery.outcome or '', recovery.outcome)}.")
    else:
        yield Text.assemble("Downtime: ", (str(show.duration(recovery.downtime_ms)), "bold"), ".")


def _replayed(recovery: Recovery) -> str:
    from clonos.cli.show import number

    if not recovery.replayed_records and not recovery.skipped_lanes:
        return "No epoch was in doubt; the job continued after the last committed epoch."
    text = f"The epoch in doubt ({number(recovery.replayed_records)} records) was replayed"
    if recovery.replayed_determinants:
        text += f" with {number(recovery.replayed_determinants)} determinants"
    if recovery.skipped_lanes:
        text += f"; {number(recovery.skipped_lanes)} lanes were already published and were skipped"
    return text + "."
