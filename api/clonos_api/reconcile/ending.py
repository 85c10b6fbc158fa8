"""Ends REST operations when their work is done, and creates the host tasks that some of them need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import JobFailed, NoHost, NotFound, Overtaken, SavepointNotTaken
from clonos.resources.clusters import ClusterState
from clonos.resources.failures import new_failure
from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, Failure, JobState, StopMode
from clonos_api.reconcile import saving
from clonos_api.reconcile.checkpoints import CheckpointLocations
from clonos_api.reconcile.isolated import Isolated, isolated_part
from clonos_api.reconcile.load import JobCase
from clonos_api.reconcile.transitions import Intent, settled
from clonos_api.store import clusters, jobs, operations, owners, tasks
from clonos_api.store.tables import ClusterRow, HostRow, JobRow, OperationRow, RunRow, SavepointRow, TaskRow


@dataclass(frozen=True)
class Completed:
    """The outcome of an operation that succeeded; `result` is what the REST API returns."""

    result: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failed:
    """The outcome of an operation that cannot succeed any more."""

    failure: Failure


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The facts about a job that decide whether its operations have ended."""

    state: JobState
    intent: Intent
    failure: Failure | None = None
    run: str | None = None
    generation: int = 0
    savepoint_requested: bool = False  # whether the stop takes a savepoint
    savepoint: str | None = None  # id of the savepoint that the stop took; None before


def judge(kind: str, progress: Progress) -> Completed | Failed | None:
    """Decides whether an operation of this `kind` (``start``, ``stop``, …) has completed or failed; None: it is in
    progress.
    """
    match kind:
        case "start" | "restart" | "resolve" | "rollback":
            return _started(progress)
        case "stop":
            return _stopped(progress)
        case "cancel" | "delete":
            return Completed() if progress.state is JobState.CANCELED else None
        case _:
            return None


def _started(progress: Progress) -> Completed | Failed | None:
    if progress.intent.desired is not DesiredState.RUNNING:
        return overtaken(f"the desired state of the job is {progress.intent.desired}")
    if not settled(progress.state, progress.intent):
        return None
    if progress.state is JobState.FAILED:
        return Failed(progress.failure or new_failure(JobFailed, "The job failed."))
    return Completed({"run": progress.run, "generation": progress.generation})


def _stopped(progress: Progress) -> Completed | Failed | None:
    if progress.intent.desired is DesiredState.RUNNING:
        return overtaken("the desired state of the job is RUNNING")
    if not (progress.state is JobState.CANCELED or (settled(progress.state, progress.intent))):
        return None
    if progress.savepoint_requested and progress.savepoint is None:
        return Failed(new_failure(SavepointNotTaken, "The job has ended, but no savepoint could be taken."))
    return Completed({"savepoint": progress.savepoint} if progress.savepoint else {})


def overtaken(by: str) -> Failed:
    """Return the failure of an operation whose request a newer one replaced; `by` describes the newer request."""
    return Failed(new_failure(Overtaken, f"A newer request replaced this one: {by}."))


_PLANNED = frozenset({"move", "upgrade"})
_COPIES = frozenset({"savepoint", "delete-savepoint"})


@dataclass
class Pending:
    """An operation in progress, with the rows that decide whether it has ended."""

    operation: OperationRow
    job: JobRow | None
    run: RunRow | None  # the job's run, or its last one
    savepoint: SavepointRow | None  # savepoint that the operation takes or deletes
    task_host: str | None  # id of the host that executes the operation's host task
    cluster: ClusterRow | None = None  # cluster that the operation checks


async def read(session: AsyncSession) -> list[Pending]:
    """Load all operations in progress."""
    rows = await operations.in_progress(session)
    if not rows:
        return []
    job_ids = {row.job for row in rows if row.job}
    job_rows = await session.execute(
        select(JobRow, RunRow).outerjoin(RunRow, RunRow.id == JobRow.run).where(JobRow.id.in_(job_ids))
    )
    of_jobs = {job.id: (job, run) for job, run in job_rows}
    open_tasks = select(TaskRow.operation, TaskRow.host).where(TaskRow.ended_at.is_(None))
    hosts = dict((await session.execute(open_tasks.where(TaskRow.operation.in_([r.id for r in rows])))).all())
    loaded = []
    for row in rows:
        job, run = of_jobs.get(row.job or "", (None, None))
        with Isolated("operation", row.id):
            savepoint = await _savepoint(session, row)
            loaded.append(Pending(row, job, run, savepoint, hosts.get(row.id), await _cluster(session, row)))
    return loaded


async def _cluster(session: AsyncSession, row: OperationRow) -> ClusterRow | None:
    if row.kind != clusters.CHECK:
        return None
    return await session.get(ClusterRow, row.arguments.cluster, populate_existing=True)


async def _savepoint(session: AsyncSession, row: OperationRow) -> SavepointRow | None:
    if row.kind in _COPIES:
        return await session.get(SavepointRow, row.arguments.savepoint, populate_existing=True)
    if not _takes_savepoint(row):
        return None
    query = select(SavepointRow).where(SavepointRow.job == row.job, SavepointRow.created_at >= row.created_at)
    return (await session.scalars(query.order_by(SavepointRow.created_at.desc()).limit(1))).first()


def is_due(pending: Pending, hosts: list[HostRow], locations: CheckpointLocations) -> bool:
    """Whether an operation has completed or failed, or needs a host task: then call `end`."""
    if _verdict(pending) is not None:
        return True
    return _task_for(pending, hosts, locations) is not None or _reason_to_wait(pending, hosts, locations) is not None


async def end(session: AsyncSession, pending: Pending, hosts: list[HostRow], locations: CheckpointLocations) -> None:
    """Completes or fails an operation, or creates its host task."""
    if pending.job is not None:
        # The job may have been loaded before the operation began; that row does not have the request.
        pending.job = await session.get(JobRow, pending.job.id, populate_existing=True)
    verdict = _verdict(pending)
    if verdict is not None and pending.task_host is not None:
        await _end_tasks(session, pending.operation)
    if isinstance(verdict, Completed):
        if pending.operation.kind == "delete" and pending.job is not None and pending.job.deleted_at is None:
            await jobs.delete(session, pending.job)
        await operations.complete(session, pending.operation, verdict.result)
        return
    if isinstance(verdict, Failed):
        await operations.fail(session, pending.operation, verdict.failure)
        return
    host = _task_for(pending, hosts, locations)
    if host is not None and pending.task_host is not None:
        await _end_tasks(session, pending.operation)
    if pending.cluster is not None and host is not None:
        await _begin_check(session, pending.cluster, host, pending.operation)
    elif pending.cluster is not None and (reason := _reason_to_wait(pending, hosts, locations)) is not None:
        await clusters.explain(session, pending.cluster, reason)
    elif host is not None and pending.savepoint is not None:
        if pending.operation.kind == "savepoint":
            await saving.copy(session, pending.savepoint, host, _checkpoint(pending, locations), pending.operation.id)
        else:
            await saving.remove(session, pending.savepoint, host, pending.operation.id)


async def expire(session: AsyncSession) -> int:
    """Mark operations whose deadline has passed as failed, end their host tasks, and return their number."""
    rows = await operations.expire(session)
    for row in rows:
        async with isolated_part(session, "operation", row.id):
            await _give_up(session, row)
        await _end_tasks(session, row)
    return len(rows)


async def _give_up(session: AsyncSession, row: OperationRow) -> None:
    assert row.failure is not None
    if row.kind in _COPIES:
        waiting = await tasks.open_of_operation(session, row.id)
        savepoint = await session.get(SavepointRow, row.arguments.savepoint, populate_existing=True)
        if savepoint is not None:
            await saving.give_up(session, savepoint, [task.host for task in waiting], row.failure)
    cluster = await _cluster(session, row)
    if cluster is not None and cluster.state == ClusterState.CHECKING:
        await clusters.fail(session, cluster, row.failure)


async def _end_tasks(session: AsyncSession, operation: OperationRow) -> None:
    for task in await tasks.open_of_operation(session, operation.id):
        await tasks.end(session, task)


def _verdict(pending: Pending) -> Completed | Failed | None:
    row, job = pending.operation, pending.job
    if row.kind == clusters.CHECK:
        if pending.cluster is None:
            return Failed(_missing("The cluster"))
        return None if pending.cluster.version == row.arguments.version else overtaken("a newer description")
    if job is None:
        return Failed(_missing("The job"))
    if row.kind in _COPIES:
        if pending.savepoint is None:
            return Failed(_missing("The savepoint"))
        over = pending.savepoint.state not in saving.IN_PROGRESS
        return Failed(pending.savepoint.failure or _missing("The savepoint")) if over else None
    if job.deleted_at is not None:
        return Completed() if row.kind in ("delete", "cancel") else Failed(_missing("The job"))
    if row.kind in _PLANNED:
        # It ends together with the move.
        move = job.moving
        return None if move is not None and move.operation == row.id else overtaken("another move")
    saved = pending.savepoint.id if pending.savepoint is not None and pending.savepoint.state == "COMPLETED" else None
    return judge(
        row.kind,
        Progress(
            state=JobState(job.state),
            intent=Intent(DesiredState(job.desired_state), job.restart_nonce != job.observed_nonce),
            failure=job.failure,
            run=job.run,
            generation=job.generation,
            savepoint_requested=_takes_savepoint(row),
            savepoint=saved,
        ),
    )


def _task_for(pending: Pending, hosts: list[HostRow], locations: CheckpointLocations) -> str | None:
    """Return the host that needs the operation's task; None: no task is needed, or the host has it."""
    if pending.task_host is not None and any(
        h.id == pending.task_host and h.state in ("READY", "DRAINING") for h in hosts
    ):
        return None
    if pending.cluster is not None:
        host = _checking_host(pending.cluster, hosts)
        return host if host != pending.task_host else None
    if pending.operation.kind not in _COPIES or pending.savepoint is None or pending.job is None:
        return None
    location = _checkpoint(pending, locations) if pending.operation.kind == "savepoint" else pending.savepoint.location
    host = saving.host_for(pending.job, pending.run.host if pending.run else None, hosts, location, locations)
    return host if host != pending.task_host else None


def _reason_to_wait(pending: Pending, hosts: list[HostRow], locations: CheckpointLocations) -> Failure | None:
    """Return why the check of a cluster waits for a host, unless the cluster's row has that reason already."""
    cluster = pending.cluster
    if cluster is None or pending.task_host is not None or _task_for(pending, hosts, locations) is not None:
        return None
    reason = _no_host(cluster)
    return None if cluster.failure == reason else reason


def _checkpoint(pending: Pending, locations: CheckpointLocations) -> str:
    if pending.job is None:
        raise AssertionError("a savepoint is taken of a job")
    return JobCase(pending.job, pending.run).checkpoint_of_run(locations)


def _takes_savepoint(row: OperationRow) -> bool:
    stop = row.arguments.stop
    return row.kind == "stop" and stop is not None and stop.mode is StopMode.CHECKPOINT


def _missing(subject: str) -> Failure:
    return new_failure(NotFound, f"{subject} does not exist any more.")


# Checks of Spark clusters


def _checking_host(cluster: ClusterRow, hosts: Iterable[HostRow]) -> str | None:
    """Return the id of a host that reaches the cluster, and can execute its check; None: there is none."""
    listed = clusters.description(cluster).spec.hosts
    reaching = [host for host in hosts if host.state == HostState.READY and (not listed or host.name in listed)]
    return min(reaching, key=lambda host: host.name).id if reaching else None


async def _begin_check(session: AsyncSession, cluster: ClusterRow, host: str, operation: OperationRow) -> None:
    """Create the host task of a check on `host` (id)."""
    cluster = await clusters.begin_check(session, cluster)
    arguments = {
        "cluster": cluster.id,
        "version": cluster.version,
        "spec": clusters.description(cluster),
        "timeout_s": clusters.CHECK_S,
    }
    number = await owners.number(session, cluster.created_by)
    await tasks.create(session, host, clusters.CHECK, arguments, operation=operation.id, owner_number=number)


def _no_host(cluster: ClusterRow) -> Failure:
    """Return the reason why no check of a cluster can begin."""
    listed = clusters.description(cluster).spec.hosts
    which = f"None of its hosts ({', '.join(sorted(listed))})" if listed else "No host"
    return new_failure(
        NoHost,
        f"{which} is READY, so cluster {cluster.name} cannot be checked.",
        kept="jobs may use the cluster; they wait for a host that reaches it.",
        hint="start an agent, and request a check: clonos cluster check.",
    )
