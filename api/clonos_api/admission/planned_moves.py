"""Checks requests for planned moves (a move to another host, or an upgrade), and begins the possible ones."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, Literal

from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import StateConflict
from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, JobState
from clonos_api.reconcile.checkpoints import CheckpointLocations
from clonos_api.reconcile.deadlines import HAND_OVER_S, MAKE_ROOM_S, PROVE_S, RECOVER_S, ROOM_MARGIN_S
from clonos_api.reconcile.load import JobCase
from clonos_api.reconcile.placement import HOST_LABEL
from clonos_api.settings import ApiSettings
from clonos_api.store import clusters, hosts, jobs, operations, planned_moves, runs
from clonos_api.store.columns import Moving
from clonos_api.store.db.clock import now
from clonos_api.store.tables import HostRow, JobRow, JobVersionRow, OperationRow, RunRow

# Longer than the deadlines of the move itself, so that these report the cause of a failure: the successor starts, and
# after a failed upgrade the driver of the older version does.
_MARGIN_S: Final = HAND_OVER_S + MAKE_ROOM_S + ROOM_MARGIN_S + PROVE_S + 2 * RECOVER_S


async def to_host(session: AsyncSession, job: JobRow, name: str | None, settings: ApiSettings) -> HostRow | None:
    """Return the host `name` (or id) as the target of a move; None if the request names no host.

    Raises `StateConflict` if the job cannot move, or not to this host.
    """
    host = await hosts.get(session, name) if name is not None else None  # first: a typing error hides the others
    locations = CheckpointLocations.of(settings)
    run = await session.get(RunRow, job.run) if job.run else None
    case = JobCase(job, run, clusters=await clusters.every(session))
    if case.is_local(locations):
        raise StateConflict(
            f"Job {job.name} cannot move: its checkpoint {case.checkpoint_of_run(locations)} is a path of its host.",
            kept="the job continues there.",
            hint="use a checkpoint that all hosts can access (a shared directory, HDFS, S3), then restart the job.",
        )
    label = job.labels.get(HOST_LABEL)
    if label is not None and (host is None or host.name != label):
        raise StateConflict(
            f"The label {HOST_LABEL} of job {job.name} names host {label}.", hint="change the label first."
        )
    if host is not None and host.state != HostState.READY:
        raise StateConflict(f"Host {host.name} is {host.state}.", kept="the job continues on its host.")
    cluster = case.cluster()
    if host is not None and cluster is not None and not cluster.reached_from(host.name):
        raise StateConflict(
            f"Host {host.name} does not reach cluster {cluster.name}.",
            kept="the job continues on its host.",
            hint=f"move it to one of {', '.join(sorted(cluster.hosts))}.",
        )
    return host


async def begin(
    session: AsyncSession,
    job: JobRow,
    kind: Literal["move", "upgrade"],
    timeout_s: float,
    by: str,
    *,
    to: HostRow | None = None,
) -> OperationRow:
    """Begins a planned move, requested by the subject `by`; a standby must be READY within `timeout_s` seconds.

    Returns its operation, which is completed already if the driver has the target host or version.
    """
    run = await _driver(session, job)
    # A move that has begun its hand-over must not be replaced.
    current = job.moving
    if current is not None and (current.handed_at is not None or current.failure is not None):
        raise StateConflict(f"The driver of job {job.name} is being replaced.", hint="retry when the move has ended.")
    if current is not None and kind == "move" and current.cause == "upgrade" and current.version == job.version:
        job = await jobs.revert(session, job, current.previous)  # the move replaces the upgrade
    operation = await operations.begin(session, kind, job=job.id, timeout_s=timeout_s + _MARGIN_S, by=by)
    reached = run.spec.version == job.version if kind == "upgrade" else to is not None and to.id == run.host
    if reached:
        result = {"run": run.id, "generation": job.generation, "version": run.spec.version}
        return await operations.complete(session, operation, result)
    moving = Moving(
        cause=kind,
        operation=operation.id,
        leaves=run.host,
        to=to.id if to is not None else None,
        version=job.version if kind == "upgrade" else run.spec.version,
        previous=run.spec.version,
        kept=await _standbys_before(session, job, run.spec.version) if kind == "upgrade" else 0,
        until=await now(session) + timedelta(seconds=timeout_s),
    )
    await planned_moves.begin(session, job, moving)
    return operation


async def _standbys_before(session: AsyncSession, job: JobRow, version: int) -> int:
    """Return the number of standbys of the driver's version; the job may revert to that version."""
    previous = await session.get(JobVersionRow, (job.id, version))
    return 0 if previous is None else previous.spec.spec.standby.dedicated_replicas


async def _driver(session: AsyncSession, job: JobRow) -> RunRow:
    if job.desired_state != DesiredState.RUNNING or job.state != JobState.RUNNING or job.run is None:
        raise StateConflict(f"Job {job.name} is {job.state}: only a running job can move or upgrade.")
    return await runs.get(session, job.run)
