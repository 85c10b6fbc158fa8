"""``clonos recovery``: the recoveries of jobs. Each lasts from a failure until the last query has returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli import completion
from clonos.cli.options import Api, Context, JobArgument, Limit, Listed, Listing, Lists, Output, Token, connect, echo
from clonos.errors import NotFound
from clonos.resources.recovery_descriptions import PHASES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType
    from rich.text import Text

    from clonos.resources.incidents import Incident
    from clonos.resources.jobs import Recovery

app = typer.Typer(no_args_is_help=True, help="Show the recoveries of jobs.")


@app.command("ls")
def list_recoveries(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]", help="Name or id of the job (default: all jobs).", autocompletion=completion.jobs
        ),
    ] = None,
    limit: Limit = 50,
    output: Lists = Listing.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """List the recoveries of a job, or of all jobs, newest first."""
    from clonos.cli import show

    with connect(api, token, context) as client:
        if job is None:
            everywhere = client.jobs.all_recoveries(limit=limit)
            columns = {"job": lambda row: row.job_name, **_columns()}
            show.show_list(everywhere, output, columns, lambda row: row.id, none="No job has had a recovery.")
            return
        page = client.jobs.recoveries(job, limit=limit)
    show.show_list(page, output, _columns(), lambda row: row.id, none="The job has no recoveries.")


def _columns() -> dict[str, Callable[[Recovery], str | Text | None]]:
    from clonos.cli import show
    from clonos.cli.picture import hosts_of

    return {
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
    }


@app.command()
def explain(
    job: JobArgument,
    recovery: Annotated[
        str | None,
        typer.Argument(metavar="[RECOVERY]", help="Id of the recovery (default: the newest).", show_default=False),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a post-mortem as Markdown.")] = False,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Explain one recovery: what happened, its phases, what was lost, and how it compares with earlier ones."""
    from rich.console import Group

    from clonos.cli import show
    from clonos.resources.incidents import post_mortem

    with connect(api, token, context) as client:
        if recovery is None:
            newest = client.jobs.recoveries(job, limit=1).data
            if not newest:
                raise NotFound(f"The job {job} has no recoveries.", hint="nothing to do.")
            recovery = newest[0].id
        incident = client.jobs.recovery(job, recovery)
    if output is Output.JSON:
        show.show_json(incident)
    elif markdown:
        echo(post_mortem(incident), nl=False)
    else:
        show.console().print(Group(*_lines(incident)))


def _lines(incident: Incident) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    from clonos.cli import show
    from clonos.resources.incidents import downtime_of

    yield Text(f"{incident.summary}.", "bold")
    started = f"Started {show.clock(incident.started_at)}; generation {incident.failed_generation}"
    yield Text(f"{started} → {incident.generation or '…'}; recovery {incident.id}", "dim")
    if incident.failure is not None:
        yield Text(f"Error: {incident.failure.error}: {incident.failure.what}")
    if len(incident.returned) > 1:
        of_queries = (f"{query} {downtime_of(returned)}" for query, returned in sorted(incident.returned.items()))
        yield Text(f"Downtime by query: {', '.join(of_queries)}")
    if incident.phases:
        longest = max(phase.duration_ms for phase in incident.phases)
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold")
        table.add_column(justify="right")
        table.add_column(min_width=20)
        table.add_column(style="dim")
        for phase in incident.phases:
            bar = _bar(phase.duration_ms / longest) if longest else ""
            table.add_row(phase.name, show.duration(phase.duration_ms), bar, PHASES.get(phase.name, ""))
        yield Text()
        yield table
    yield Text()
    yield Text.assemble(("Lost: ", "bold"), f"{incident.loss.summary}.")
    for sentence in incident.loss.evidence:
        yield Text(f"  {sentence}", "dim")
    yield Text.assemble(("Compared: ", "bold"), incident.comparison.summary)
    if incident.ended_at is None:
        yield Text(f"In progress for {show.age(incident.started_at, incident.at)}.", "bold yellow")


def _bar(share: float) -> str:
    """A bar of at most 20 characters, to an eighth of a character."""
    eighths = max(1, round(160 * share))
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")
