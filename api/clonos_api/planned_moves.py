"""Planned moves that somebody asks for: what is refused at once, and what waits for a standby."""

from __future__ import annotations

from typing import Final, Literal

from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import StateConflict
from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, JobState
from clonos.spec import JobSpec
from clonos_api.reconcile import checkpoints
from clonos_api.reconcile.deadlines import HAND_OVER_S, MAKE_ROOM_S, PROVE_S, RECOVER_S
from clonos_api.reconcile.placement import HOST_LABEL
from clonos_api.settings import ApiSettings
from clonos_api.store import agents, moves, operations, runs
from clonos_api.store.tables import AgentRow, JobRow, JobVersionRow, OperationRow, RunRow

# Longer than the move's own deadlines, so that these say what went wrong.
_MARGIN_S: Final = HAND_OVER_S + MAKE_ROOM_S + PROVE_S + RECOVER_S


async def to_host(session: AsyncSession, job: JobRow, name: str | None, settings: ApiSettings) -> AgentRow | None:
    """The host that a job is to be moved to; None: any other.

    Raises:
        NotFound: There is no such host.
        StateConflict: It takes nothing, or the job cannot leave the host that it is on.
    """
    spec = JobSpec.model_validate(job.spec).spec
    where = checkpoints.location(spec.checkpoint, job.name, home=settings.home, shared=settings.shared_checkpoints)
    if checkpoints.is_local(where, settings.shared_checkpoints):
        raise StateConflict(
            f"Job {job.name} cannot move: its checkpoint {where} is a path of the host that it runs on.",
            kept="it goes on there.",
            hint="put the checkpoint where all hosts see it (a shared folder, HDFS, S3).",
        )
    host = await agents.get(session, name) if name is not None else None
    label = job.labels.get(HOST_LABEL)
    if label is not None and (host is None or host.name != label):
        raise StateConflict(
            f"Job {job.name} is to run on host {label}: its label {HOST_LABEL} says so.", hint="change the label first."
        )
    if host is not None and host.state != HostState.READY:
        raise StateConflict(f"Host {host.name} is {host.state}.", kept="the job goes on where it is.")
    return host


async def begin(
    session: AsyncSession,
    job: JobRow,
    kind: Literal["move", "upgrade"],
    timeout_s: float,
    by: str,
    *,
    to: AgentRow | None = None,
) -> OperationRow:
    """Begin one; done at once where the job has what is asked for.

    Raises:
        StateConflict: The job does not run, or its driver is just being replaced.
    """
    run = await _driver(session, job)
    # The row as it is now: with a move under way it must not be replaced in the middle.
    under_way = moves.of(job)
    if under_way is not None and (under_way.handed_at is not None or under_way.failure is not None):
        raise StateConflict(f"The driver of job {job.name} is just being replaced.", hint="wait for that.")
    arguments = {"to": to.name if to is not None else None} if kind == "move" else {"version": job.version}
    begun = await operations.begin(
        session, kind, job=job.id, arguments=arguments, timeout_s=timeout_s + _MARGIN_S, by=by
    )
    there = run.order["version"] == job.version if kind == "upgrade" else to is not None and to.id == run.agent
    if there:
        result = {"run": run.id, "generation": job.generation, "version": run.order["version"]}
        return await operations.complete(session, begun, result)
    await moves.begin(
        session,
        job,
        kind,
        leaves=run.agent,
        to=to.id if to is not None else None,
        previous=run.order["version"],
        version=job.version if kind == "upgrade" else run.order["version"],
        kept_standbys=await _standbys_before(session, job) if kind == "upgrade" else 0,
        timeout_s=timeout_s,
        operation=begun.id,
    )
    return begun


async def _standbys_before(session: AsyncSession, job: JobRow) -> int:
    """How many standbys the version before the newest is to have: until the newest counts, the job may go back."""
    before = await session.get(JobVersionRow, (job.id, job.version - 1))
    return 0 if before is None else JobSpec.model_validate(before.spec).spec.standby.wanted


async def _driver(session: AsyncSession, job: JobRow) -> RunRow:
    if job.desired_state != DesiredState.RUNNING or job.state != JobState.RUNNING or job.run is None:
        raise StateConflict(f"Job {job.name} is {job.state}: only one that runs can do so through a standby.")
    return await runs.get(session, job.run)
