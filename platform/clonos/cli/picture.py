"""One job as a picture: what it does, where, since when, and what last went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from clonos.cli.show import age, clock, duration, number, state
from clonos.errors import NotFound
from clonos.resources.jobs import Generation, Job, JobException, JobState, Metrics, Recovery, Run

if TYPE_CHECKING:
    from clonos.client import Client


_MOVING: Final = frozenset({JobState.STARTING, JobState.RECOVERING, JobState.STOPPING, JobState.CANCELLING})


class Inspection(BaseModel):
    """What ``clonos job inspect`` shows; each part is a body of the API.

    Attributes:
        run: Where it was placed last, and the process of its driver. Its standbys have runs of their own.
        generation: The newest.
        recovery: The newest.
        error: The newest error that a driver told.
    """

    job: Job
    metrics: Metrics
    run: Run | None
    generation: Generation | None
    recovery: Recovery | None
    error: JobException | None


def look(client: Client, name: str) -> Inspection:
    """Ask for all parts."""
    job = client.jobs.get(name)
    generations = client.jobs.generations(job.id, limit=1).data
    recoveries = client.jobs.recoveries(job.id, limit=1).data
    exceptions = client.jobs.exceptions(job.id, limit=1).data
    return Inspection(
        job=job,
        metrics=client.jobs.metrics(job.id),
        run=_run(client, job),
        generation=generations[0] if generations else None,
        recovery=recoveries[0] if recoveries else None,
        error=exceptions[0] if exceptions else None,
    )


def _run(client: Client, job: Job) -> Run | None:
    """Its driver's. The newest is often that of a standby."""
    if job.run is None:
        return None
    try:
        return client.jobs.run(job.id, job.run)
    except NotFound:
        return None  # it ended long ago


def picture(found: Inspection) -> RenderableType:
    """The whole."""
    parts: list[RenderableType] = [_head(found.job), _facts(found)]
    if found.metrics.queries:
        parts += [Text(), _queries(found.metrics)]
    if found.recovery is not None:
        parts += [Text(), *_recovery(found.recovery)]
    parts += _trouble(found)
    return Group(*parts)


def _head(job: Job) -> Text:
    told = Text.assemble((job.name, "bold"), "  ", state(job.state), f" for {age(job.state_since)}")
    if job.state_deadline is not None:
        told.append(f", until {clock(job.state_deadline)} at the latest", "dim")
    if job.state in _MOVING:
        told.append(f"  (asked for: {job.desired_state})", "dim")
    return told


def _facts(found: Inspection) -> Table:
    job, generation = found.job, found.generation
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    table.add_row("id", job.id)
    table.add_row("generation", _generation(job, generation))
    process = f", process {found.run.pid}" if job.agent and found.run and found.run.state == "RUNNING" else ""
    table.add_row("runs on", f"{job.agent}{process}" if job.agent else "no host")
    version = f"{job.version}"
    if job.observed_version not in (0, job.version):
        version += f" (its driver still runs {job.observed_version}: `clonos job restart {job.name}`)"
    table.add_row("version", version)
    table.add_row("restarts", str(job.restarts))
    lag = _lag(found.metrics)
    table.add_row("lag", f"{number(lag)} records" if lag is not None else "not known")
    table.add_row("owner", job.owner)
    table.add_row("created", clock(job.created_at))
    if job.labels:
        table.add_row("labels", ", ".join(f"{key}={value}" for key, value in sorted(job.labels.items())))
    return table


def _generation(job: Job, generation: Generation | None) -> str:
    if job.generation == 0:
        return "none yet"
    if generation is None or generation.generation != job.generation:
        return str(job.generation)
    return f"{job.generation} since {clock(generation.claimed_at)}, because of: {generation.cause}"


def _lag(metrics: Metrics) -> int | None:
    known = [sum(query.lag.values()) for query in metrics.queries.values() if query.lag]
    return sum(known) if known else None


def _queries(metrics: Metrics) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("query")
    for title in ("epoch", "records in", "out", "in/s", "out/s", "p50", "p99", "lag", "replayed", "skipped", "dead"):
        table.add_column(title, justify="right")
    for name, query in sorted(metrics.queries.items()):
        table.add_row(
            name,
            str(query.epoch) if query.epoch >= 0 else "-",
            number(query.records_in),
            number(query.records_out),
            f"{query.records_in_per_s:.1f}",
            f"{query.records_out_per_s:.1f}",
            duration(query.epoch_ms_p50) or "-",
            duration(query.epoch_ms_p99) or "-",
            number(sum(query.lag.values())) if query.lag else "-",
            number(query.replayed_determinants),
            number(query.skipped_lanes),
            number(query.dead_letters),
        )
    return table


def _recovery(recovery: Recovery) -> Iterator[Text]:
    over = f"generation {recovery.failed_generation} → {recovery.generation or '…'}"
    gap = f"gap {duration(recovery.gap_ms)}" if recovery.gap_ms is not None else recovery.outcome or "still going on"
    where = recovery.from_agent if recovery.to_agent in (None, recovery.from_agent) else moved(recovery)
    yield Text.assemble(
        ("last recovery", "dim"),
        "  ",
        (recovery.cause, "bold yellow"),
        f", {over}, {gap}, {age(recovery.started_at)} ago, on {where}",
    )
    if recovery.failure is not None:
        yield Text(f"  {recovery.failure.error}: {recovery.failure.what}", "yellow")


def moved(recovery: Recovery) -> str:
    """From where to where."""
    return f"{recovery.from_agent} → {recovery.to_agent or '…'}"


def _trouble(found: Inspection) -> Iterator[RenderableType]:
    job = found.job
    failure = job.failure or (found.error.failure if found.error else None)
    if failure is None:
        return
    current = job.failure is not None and job.state in (JobState.FAILED, JobState.STARTING, JobState.RECOVERING)
    yield Text()
    title = "error" if current else "last error"
    when = f"  {age(failure.at)} ago" if failure.at is not None else ""
    yield Text.assemble((title, "dim"), "  ", (failure.error, "bold red" if current else "bold"), (when, "dim"))
    yield Text(f"  {failure.what}")
    if failure.kept:
        yield Text.assemble(("  Kept safe: ", "dim"), failure.kept)
    if failure.hint:
        yield Text.assemble(("  What to do: ", "dim"), failure.hint)
