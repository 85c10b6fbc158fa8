"""Ends rows that would otherwise wait forever, for instance after a crash between two steps.

The leader ends savepoints and host tasks whose operation has ended, recoveries that no epoch can complete any more, and
discarded runs on lost hosts.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.hosts import HostState
from clonos.resources.jobs import JobState
from clonos.resources.recovery_descriptions import PLANNED
from clonos.resources.verification import VERIFY
from clonos_api.reconcile.deadlines import RECOVER_S
from clonos_api.reconcile.isolated import Isolated, isolated_part
from clonos_api.reconcile.saving import IN_PROGRESS
from clonos_api.reconcile.states.failures import savepoint_given_up
from clonos_api.store import clusters, jobs, operations, recoveries, runs, savepoints, tasks
from clonos_api.store.columns import Outcome
from clonos_api.store.db.clock import now
from clonos_api.store.tables import HostRow, JobRow, RecoveryRow, RunRow, SavepointRow, TaskRow

EVERY_S: Final = 5.0


_LOST: Final = (
    RunRow.ended_at.is_(None),
    RunRow.state != "LOST",
    RunRow.spec["desired"].as_string() == "ABSENT",
    HostRow.state == HostState.LOST,
)
_WAITING: Final = select(
    or_(
        select(RecoveryRow.id).where(RecoveryRow.ended_at.is_(None)).exists(),
        select(SavepointRow.id).where(SavepointRow.state.in_(IN_PROGRESS)).exists(),
        select(TaskRow.id).where(TaskRow.ended_at.is_(None)).exists(),
        select(RunRow.id).join(HostRow, HostRow.id == RunRow.host).where(*_LOST).exists(),
    )
)


async def is_needed(session: AsyncSession) -> bool:
    """Whether there are rows that `tidy` may end."""
    return bool((await session.execute(_WAITING)).scalar_one())


async def tidy(session: AsyncSession) -> int:
    """End savepoints, host tasks, runs and recoveries that would otherwise wait forever; return their number."""
    ended = await _recoveries(session)  # first: it locks jobs, and then the others lock runs
    needed: dict[str, str | None] = {}
    for row in await operations.in_progress(session):
        needed[row.id] = None
        with Isolated("operation", row.id):
            needed[row.id] = row.arguments.savepoint
    ended += await _savepoints(session, set(needed.values())) + await _tasks(session, set(needed))
    return ended + await _lost_runs(session)


async def _savepoints(session: AsyncSession, needed: set[str | None]) -> int:
    """Savepoints that no operation and no stop waits for."""
    query = select(SavepointRow, JobRow.state).join(JobRow, JobRow.id == SavepointRow.job)
    ended = 0
    for row, state in (await session.execute(query.where(SavepointRow.state.in_(IN_PROGRESS)))).all():
        if row.id not in needed and state != JobState.STOPPING:
            async with isolated_part(session, "savepoint", row.id):
                await savepoints.fail(session, row, savepoint_given_up())
                ended += 1
    return ended


async def _tasks(session: AsyncSession, needed: set[str]) -> int:
    """Tasks whose operation has ended, or whose savepoint does not need them."""
    ended = 0
    for task in (await session.scalars(select(TaskRow).where(TaskRow.ended_at.is_(None)))).all():
        async with isolated_part(session, "task", task.id):
            savepoint = await session.get(SavepointRow, task.subject.savepoint)
            waits = task.kind in (clusters.CHECK, VERIFY) or (savepoint is not None and savepoint.state in IN_PROGRESS)
            if not waits or (task.operation is not None and task.operation not in needed):
                ended += await tasks.end(session, task)
    return ended


async def _lost_runs(session: AsyncSession) -> int:
    """Discarded runs whose host is lost."""
    query = select(RunRow).join(HostRow, HostRow.id == RunRow.host).order_by(RunRow.id)
    lost = 0
    for run in (await session.scalars(query.where(*_LOST))).all():
        async with isolated_part(session, "run", run.id):
            await runs.lose(session, run)
            lost += 1
    return lost


async def _recoveries(session: AsyncSession) -> int:
    """Recoveries that have an outcome."""
    moment = await now(session)
    query = select(RecoveryRow.id, RecoveryRow.job).where(RecoveryRow.ended_at.is_(None)).order_by(RecoveryRow.job)
    ended = 0
    for recovery, job_id in (await session.execute(query)).all():
        await recoveries.lock_job(session, job_id)  # the report of an epoch may end it at the same time
        row = await session.get_one(RecoveryRow, recovery, populate_existing=True)
        job = await session.get_one(JobRow, job_id, populate_existing=True)
        if row.ended_at is not None:
            continue
        async with isolated_part(session, "recovery", recovery):
            outcome = await _outcome(session, row, job, moment)
            if outcome is not None:
                await recoveries.end(session, row, outcome)
                ended += 1
    return ended


async def _outcome(session: AsyncSession, row: RecoveryRow, job: JobRow, moment: datetime) -> Outcome | None:
    if job.state in jobs.SETTLED or job.deleted_at is not None:
        return "ABANDONED"
    failed, newest = row.body.failed_generation, await recoveries.newest_since(session, row)
    # Its first epoch was reported before its beginning, or the generation that was reported as failed continues.
    alive = newest == failed == job.generation and job.state == JobState.RUNNING
    if alive and job.moving is not None and row.body.cause in PLANNED:
        return None  # the driver runs until the standby claims the log
    returned = bool(row.body.returned)  # the recovery has seen an epoch and waits for other queries
    if alive or (newest >= (row.body.generation or failed + 1) and not returned):
        return "OVERTAKEN"
    idle = job.state == JobState.RUNNING and moment - job.state_since > timedelta(seconds=RECOVER_S)
    return "IDLE" if idle and moment - row.started_at > timedelta(seconds=RECOVER_S) else None
