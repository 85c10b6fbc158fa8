"""The view of one job: state, host, figures, last recovery and last error; drawn once, or until the job ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from clonos.cli.logs import line_of
from clonos.cli.options import echo, until_interrupted
from clonos.cli.show import age, clock, console, duration, facts, number, show_json, state, table
from clonos.client.jobs import ENDED
from clonos.client.responses import error_of_failure
from clonos.errors import ClonosError, NotFound
from clonos.resources.clusters import Cluster
from clonos.resources.jobs import (
    DesiredState,
    Executors,
    Generation,
    Job,
    JobException,
    JobState,
    Metrics,
    Recovery,
    Run,
)
from clonos.resources.lag import lag_of_job

if TYPE_CHECKING:
    from rich.console import Console

    from clonos.cli.show import Cell
    from clonos.client import Client

_POLL_S: Final = 0.5
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
    """Request what ``clonos job inspect`` shows of a job: itself, its metrics and run, and the newest of the others."""
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
    """Return the driver's run. The newest run often belongs to a standby."""
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
        parts += [Text(), _queries(inspection.metrics), *_reasons(inspection.metrics)]
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
    job, run, cluster = inspection.job, inspection.run, inspection.job.spec.spec.cluster
    process = f", process {run.pid}" if job.host and run and run.state == "RUNNING" else ""
    rows: dict[str, Cell] = {
        "id": job.id,
        "generation": _generation(job, inspection.generation),
        "runs on": f"{job.host}{process}" if job.host else "no host",
    }
    if cluster:
        rows["cluster"] = _used_cluster(cluster, inspection.cluster)
    if run is not None and run.cluster and run.application_id:
        rows["application"] = " ".join(filter(None, (run.application_id, run.spark_ui)))
        if run.executors is not None:
            rows["executors"] = _executors(run.executors)
    version = f"{job.version}"
    if job.observed_version not in (0, job.version):
        # While a job starts, the driver of another version finishes the epochs in doubt that this version planned.
        update = f"; update it with `clonos job restart {job.name}`" if job.state == "RUNNING" else ""
        version += f" (the driver runs {job.observed_version}{update})"
    lag = lag_of_job(query.lag for query in inspection.metrics.queries.values()) if job.state == "RUNNING" else None
    rows |= {
        "version": version,
        "restarts": str(job.restarts),
        "lag": f"{number(lag)} records" if lag is not None else "unknown: no driver reports it",
        "created by": job.created_by,
        "created": clock(job.created_at),
    }
    if job.labels:
        rows["labels"] = ", ".join(f"{key}={value}" for key, value in sorted(job.labels.items()))
    return facts(rows)


def _used_cluster(name: str, cluster: Cluster | None) -> Text:
    if cluster is None:
        return Text(f"{name} (removed)")
    return Text.assemble(name, "  ", state(cluster.state), f"  {cluster.spec.ui}" if cluster.spec.ui else "")


def _executors(executors: Executors) -> str:
    lines = [f"{executors.registered} of {executors.wanted} registered"]
    for executor in executors.listed:
        lines.append(f"{executor.id} on {executor.host}, {executor.cores} cores  {executor.stderr}".rstrip())
    if executors.registered > len(executors.listed):
        lines.append(f"{executors.registered - len(executors.listed)} more are not listed")
    return "\n".join(lines)


def _generation(job: Job, generation: Generation | None) -> str:
    if job.generation == 0:
        return "none yet"
    if generation is None or generation.generation != job.generation:
        return str(job.generation)
    return f"{job.generation} since {clock(generation.claimed_at)}, cause: {generation.cause}"


def _queries(metrics: Metrics) -> Table:
    of = metrics.queries
    return table(
        sorted(of),
        {
            "query": lambda name: name,
            "mode": lambda name: of[name].mode,
            "epoch#": lambda name: str(of[name].epoch) if of[name].epoch >= 0 else None,
            "records in#": lambda name: number(of[name].records_in),
            "out#": lambda name: number(of[name].records_out),
            "in/s#": lambda name: f"{of[name].records_in_per_s:.1f}",
            "out/s#": lambda name: f"{of[name].records_out_per_s:.1f}",
            "p50#": lambda name: duration(of[name].epoch_ms_p50),
            "p99#": lambda name: duration(of[name].epoch_ms_p99),
            "lag#": lambda name: number(sum(of[name].lag.values())) if of[name].lag else None,
            "replayed#": lambda name: number(of[name].replayed_determinants),
            "skipped#": lambda name: number(of[name].skipped_lanes),
            "dead#": lambda name: number(of[name].dead_letters),
            "late#": lambda name: number(of[name].late_rows),
        },
    )


def _reasons(metrics: Metrics) -> Iterator[Text]:
    for name, query in sorted(metrics.queries.items()):
        if query.because:
            yield Text(f"{name} runs in epochs: {query.because}", "dim")


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
    """Return the host of a recovery, or the hosts before and after it, as text."""
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


def watch(client: Client, name: str, *, as_json: bool = False) -> None:
    """Watch a job until it ends or Ctrl-C; if the job has failed, raise its error."""
    job, interrupted = client.jobs.get(name), True
    out = console()
    with until_interrupted():
        live = out.is_terminal and not as_json
        job = _draw(client, job.id, out) if live else _print_events(client, job, as_json=as_json)
        interrupted = False
    if interrupted:
        job = client.jobs.get(job.id)
    if job.state is JobState.FAILED and job.failure is not None:
        raise error_of_failure(job.failure)
    if not as_json:
        out.print(Text.assemble((job.name, "bold"), " is ", state(job.state), "."))


def is_over(job: Job) -> bool:
    """Whether the job has ended and no start is requested."""
    starting = job.desired_state is DesiredState.RUNNING and job.state in (JobState.STOPPED, JobState.CANCELED)
    return job.state in ENDED and not starting


def _draw(client: Client, job: str, out: Console) -> Job:
    inspection = fetch(client, job)
    with Live(picture(inspection), console=out, auto_refresh=False, transient=True) as live:
        while True:
            inspection = _refresh(client, job, inspection)
            live.update(picture(inspection), refresh=True)
            if is_over(inspection.job):
                break
            time.sleep(_POLL_S)
    out.print(picture(inspection))
    return inspection.job


def _refresh(client: Client, job: str, before: Inspection) -> Inspection:
    """Return the current data, or `before` if the control plane is unavailable for a moment."""
    try:
        return fetch(client, job)
    except ClonosError as error:
        if not error.retry:
            raise
        return before


def _print_events(client: Client, job: Job, *, as_json: bool) -> Job:
    """Print the current state in one line, then each new event."""
    _, newest = client.events.newest(1, job=job.id)
    job = client.jobs.get(job.id)  # after the request above, so that no change is missed
    if not as_json:
        echo(f"{job.name} is {job.state}, generation {job.generation}.")
    if is_over(job):
        return job
    stop = threading.Event()
    for event in client.events.follow(job=job.id, after=newest, stop=stop):
        if as_json:
            show_json(event)
        else:
            echo(line_of(event).plain)
        if event.type.startswith("job."):
            job = client.jobs.get(job.id)
            if is_over(job):
                stop.set()
    return job
