"""The past of jobs: ``clonos recovery``, and ``clonos job exceptions``, ``generations`` and ``versions``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli import completion, show
from clonos.cli.options import JobArgument, Limit, Listed, Lists, echo
from clonos.cli.remote import Call, remote
from clonos.errors import NotFound, SpecError
from clonos.resources.recovery_descriptions import PHASES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Group, RenderableType

    from clonos.cli.show import Cell
    from clonos.resources.incidents import Incident
    from clonos.resources.jobs import Recovery

recovery = typer.Typer(no_args_is_help=True, help="Show the recoveries of jobs.")


@recovery.command("ls")
@remote(output=Lists)
def list_recoveries(
    call: Call,
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]", help="Name or id of the job (default: all jobs).", autocompletion=completion.jobs
        ),
    ] = None,
    limit: Limit = 50,
) -> None:
    """List the recoveries of a job, or of all jobs, newest first."""
    jobs = call.client.jobs
    if job is None:
        everywhere = {"job": lambda row: row.job_name, **_columns()}
        call.show_list(
            jobs.all_recoveries(limit=limit), everywhere, lambda row: row.id, none="No job has had a recovery."
        )
    else:
        call.show_list(jobs.recoveries(job, limit=limit), _columns(), none="The job has no recoveries.")


def _columns() -> dict[str, Callable[[Recovery], Cell]]:
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


@recovery.command()
@remote(output=Listed)
def explain(
    call: Call,
    job: JobArgument,
    recovery: Annotated[
        str | None,
        typer.Argument(metavar="[RECOVERY]", help="Id of the recovery (default: the newest).", show_default=False),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a post-mortem as Markdown.")] = False,
) -> None:
    """Explain one recovery: what happened, its phases, what was lost, and how it compares with earlier ones."""
    from clonos.resources.incidents import post_mortem

    if recovery is None:
        newest = call.client.jobs.recoveries(job, limit=1).data
        if not newest:
            raise NotFound(f"The job {job} has no recoveries.", hint="nothing to do.")
        recovery = newest[0].id
    incident = call.client.jobs.recovery(job, recovery)
    if markdown and not call.as_json:
        echo(post_mortem(incident), nl=False)
    else:
        call.show(incident, _explanation)


def _explanation(incident: Incident) -> Group:
    from rich.console import Group

    return Group(*_lines(incident))


def _lines(incident: Incident) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

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
    """Draw a bar of at most 20 characters, to an eighth of a character."""
    eighths = max(1, round(160 * share))
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")


@remote(output=Lists)
def exceptions(call: Call, job: JobArgument, limit: Limit = 50) -> None:
    """List the errors of a job's drivers, newest first."""
    call.show_list(
        call.client.jobs.exceptions(job, limit=limit),
        {
            "at": lambda row: show.clock(row.at),
            "generation#": lambda row: str(row.generation),
            "error": lambda row: row.failure.error,
            "retried": lambda row: "yes" if row.failure.retry else "no",
            "what": lambda row: show.short(row.failure.what, 200),
        },
        lambda row: row.failure.error,
        none="Its drivers reported no errors.",
    )


@remote(output=Lists)
def generations(call: Call, job: JobArgument, limit: Limit = 50) -> None:
    """List the generations of a job (claims of its causal log), newest first."""
    call.show_list(
        call.client.jobs.generations(job, limit=limit),
        {
            "generation#": lambda row: f"{row.lineage}.{row.generation}",
            "cause": lambda row: row.cause,
            "host": lambda row: row.host,
            "attempt#": lambda row: str(row.attempt),
            "claimed": lambda row: show.clock(row.claimed_at),
            "ended": lambda row: show.clock(row.ended_at),
            "epochs#": lambda row: show.number(row.epochs),
            "records#": lambda row: show.number(row.records),
        },
        none="No driver has claimed its causal log yet.",
    )


@remote(output=Lists)
def versions(
    call: Call,
    job: JobArgument,
    numbers: Annotated[
        list[int] | None,
        typer.Argument(metavar="VERSION…", min=1, help="With --diff: two versions, or one (with the present)."),
    ] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Show what differs in specification and code.")] = False,
    limit: Limit = 50,
) -> None:
    """List the versions of a job, newest first, or show what differs between two of them.

    Without VERSION, --diff compares the version that runs with the one that the next start runs; if they are the same,
    with the newest other one.
    """
    chosen = numbers or []
    if len(chosen) > 2 or (chosen and not diff):
        raise SpecError("A comparison needs --diff and at most two versions.")
    current = call.client.jobs.get(job)
    page = call.client.jobs.versions(job, limit=limit)
    if diff:
        runs = current.observed_version or current.version
        if not chosen:
            others = [row.version for row in page.data if row.version != current.version]
            chosen = [runs if runs != current.version else others[0]] if others else [current.version]
        compared = call.client.jobs.compare_versions(job, *chosen)
        if not call.as_json:
            echo(f"Version {compared.before} and version {compared.after}:", err=True)
        call.show(compared, lambda both: "\n".join([*both.spec, *both.code]) or "No differences.")
        return
    marks = {current.observed_version: "the newest driver", current.version: "the next start"}
    if current.observed_version == current.version:
        marks[current.version] = "the newest driver, and the next start"
    call.show_list(
        page,
        {
            "version#": lambda row: str(row.version),
            "runs in": lambda row: marks.get(row.version, ""),
            "created": lambda row: show.clock(row.created_at),
            "created by": lambda row: row.created_by,
            "code": lambda row: row.artifact[:12],
        },
        none="It has no versions.",
    )
