"""The view of one job in ``clonos job inspect``: state, host, figures, last recovery and last error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from clonos.cli.show import age, clock, duration, number, state
from clonos.errors import NotFound
from clonos.resources.clusters import Cluster
from clonos.resources.jobs import Executors, Generation, Job, JobException, JobState, Metrics, Recovery, Run
from clonos.resources.lag import lag_of_job

if TYPE_CHECKING:
    from clonos.client import Client


_MOVING: Final = frozenset({JobState.STARTING, JobState.RECOVERING, JobState.STOPPING, JobState.CANCELLING})


class Inspection(BaseModel):
    """The data of ``clonos job inspect``; each part is a REST body."""

    job: Job
    metrics: Metrics  # the metrics of the job's queries
    run: Run | None  # the run of the job's driver, not of a standby
    generation: Generation | None  # the newest generation
    recovery: Recovery | None  # the newest recovery
    error: JobException | None  # the newest error of a driver
    cluster: Cluster | None = None  # the Spark cluster that the specification names


def fetch(client: Client, name: str) -> Inspection:
    """Request what ``clonos job inspect`` shows: a job, its metrics and run, and its newest generation, recovery and
    error.

    Args:
        client: The connection to the control plane.
        name: Name or id of the job.
    """
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
        cluster=_cluster(client, job),
    )


def _cluster(client: Client, job: Job) -> Cluster | None:
    if not job.spec.spec.cluster:
        return None
    try:
        return client.clusters.get(job.spec.spec.cluster)
    except NotFound:
        return None  # it was removed


def _run(client: Client, job: Job) -> Run | None:
    """The driver's run. The newest run often belongs to a standby."""
    if job.run is None:
        return None
    try:
        return client.jobs.run(job.id, job.run)
    except NotFound:
        return None  # deleted by retention


def picture(inspection: Inspection) -> RenderableType:
    """Draw the view of a job for a terminal."""
    parts: list[RenderableType] = [_head(inspection.job), _details(inspection)]
    if inspection.metrics.queries:
        parts += [Text(), _queries(inspection.metrics)]
    if inspection.recovery is not None:
        parts += [Text(), *_recovery(inspection.recovery)]
    parts += _error(inspection)
    return Group(*parts)


def _head(job: Job) -> Text:
    line = Text.assemble((job.name, "bold"), "  ", state(job.state), f" for {age(job.state_since)}")
    if job.state_deadline is not None:
        line.append(f", deadline {clock(job.state_deadline)}", "dim")
    if job.state in _MOVING:
        line.append(f"  (desired: {job.desired_state})", "dim")
    return line


def _details(inspection: Inspection) -> Table:
    job, generation = inspection.job, inspection.generation
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    table.add_row("id", job.id)
    table.add_row("generation", _generation(job, generation))
    process = (
        f", process {inspection.run.pid}" if job.host and inspection.run and inspection.run.state == "RUNNING" else ""
    )
    table.add_row("runs on", f"{job.host}{process}" if job.host else "no host")
    if job.spec.spec.cluster:
        table.add_row("cluster", _used_cluster(job.spec.spec.cluster, inspection.cluster))
    if inspection.run is not None and inspection.run.cluster and inspection.run.application_id:
        application = filter(None, (inspection.run.application_id, inspection.run.spark_ui))
        table.add_row("application", Text(" ".join(application)))
        if inspection.run.executors is not None:
            table.add_row("executors", _executors(inspection.run.executors))
    version = f"{job.version}"
    if job.observed_version not in (0, job.version):
        # While a job starts, the driver of another version finishes the epochs in doubt that this version planned.
        update = f"; update it with `clonos job restart {job.name}`" if job.state == "RUNNING" else ""
        version += f" (the driver runs {job.observed_version}{update})"
    table.add_row("version", version)
    table.add_row("restarts", str(job.restarts))
    lag = _lag(inspection.metrics) if job.state == "RUNNING" else None
    table.add_row("lag", f"{number(lag)} records" if lag is not None else "unknown: no driver reports it")
    table.add_row("created by", job.created_by)
    table.add_row("created", clock(job.created_at))
    if job.labels:
        table.add_row("labels", ", ".join(f"{key}={value}" for key, value in sorted(job.labels.items())))
    return table


def _used_cluster(name: str, cluster: Cluster | None) -> Text:
    if cluster is None:
        return Text(f"{name} (removed)")
    return Text.assemble(name, "  ", state(cluster.state), f"  {cluster.spec.ui}" if cluster.spec.ui else "")


def _executors(executors: Executors) -> Text:
    lines = [f"{executors.registered} of {executors.wanted} registered"]
    for executor in executors.listed:
        lines.append(f"{executor.id} on {executor.host}, {executor.cores} cores  {executor.stderr}".rstrip())
    if executors.registered > len(executors.listed):
        lines.append(f"{executors.registered - len(executors.listed)} more are not listed")
    return Text("\n".join(lines))


def _generation(job: Job, generation: Generation | None) -> str:
    if job.generation == 0:
        return "none yet"
    if generation is None or generation.generation != job.generation:
        return str(job.generation)
    return f"{job.generation} since {clock(generation.claimed_at)}, cause: {generation.cause}"


def _lag(metrics: Metrics) -> int | None:
    return lag_of_job(query.lag for query in metrics.queries.values())


def _queries(metrics: Metrics) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("query")
    for title in (
        "epoch",
        "records in",
        "out",
        "in/s",
        "out/s",
        "p50",
        "p99",
        "lag",
        "replayed",
        "skipped",
        "dead",
        "late",
    ):
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
            number(query.late_rows),
        )
    return table


def _recovery(recovery: Recovery) -> Iterator[Text]:
    generations = f"generation {recovery.failed_generation} → {recovery.generation or '…'}"
    downtime = (
        f"downtime {duration(recovery.downtime_ms)}"
        if recovery.downtime_ms is not None
        else recovery.outcome or "in progress"
    )
    yield Text.assemble(
        ("last recovery", "dim"),
        "  ",
        (recovery.cause, "bold yellow"),
        f", {generations}, {downtime}, {age(recovery.started_at)} ago, on {hosts_of(recovery)}",
    )
    if recovery.failure is not None:
        yield Text(f"  {recovery.failure.error}: {recovery.failure.what}", "yellow")


def hosts_of(recovery: Recovery) -> str:
    """The host of a recovery, or the hosts before and after it, as text."""
    moved = recovery.to_host not in (None, recovery.from_host)
    return f"{recovery.from_host} → {recovery.to_host}" if moved else recovery.from_host


def _error(inspection: Inspection) -> Iterator[RenderableType]:
    job = inspection.job
    failure = job.failure or (inspection.error.failure if inspection.error else None)
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
