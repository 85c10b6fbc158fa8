"""Ends what waits for something that will not come: the owner of all that has no other.

Savepoints and tasks whose operation is over, recoveries whose epoch was missed or will not come, runs that a lost host
was to end. The leader does it
every few seconds; a crash between two steps of anybody, or an agent that is gone, leaves nothing waiting for ever.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.hosts import HostState
from clonos.resources.jobs import JobState
from clonos_api.reconcile.deadlines import RECOVER_S
from clonos_api.reconcile.saving import UNDER_WAY
from clonos_api.reconcile.states.failures import untaken
from clonos_api.store import jobs, operations, recoveries, runs, savepoints, tasks
from clonos_api.store.clock import now
from clonos_api.store.tables import AgentRow, JobRow, RecoveryRow, RunRow, SavepointRow, TaskRow

EVERY_S: Final = 5.0


async def tidy(session: AsyncSession) -> int:
    """End what nobody else will; how much.

    Raises:
        Fenced: Somebody was just ending it.
    """
    wanted = {one.id: str(one.arguments.get("savepoint")) for one in await operations.in_progress(session)}
    ended = await _savepoints(session, set(wanted.values())) + await _tasks(session, set(wanted))
    return ended + await _lost(session) + await _ends(session)


async def _savepoints(session: AsyncSession, wanted: set[str]) -> int:
    """No operation and no stop waits for them."""
    query = select(SavepointRow, JobRow.state).join(JobRow, JobRow.id == SavepointRow.job)
    ended = 0
    for row, state in (await session.execute(query.where(SavepointRow.state.in_(UNDER_WAY)))).all():
        if row.id not in wanted and state != JobState.STOPPING:
            await savepoints.fail(session, row, untaken())
            ended += 1
    return ended


async def _tasks(session: AsyncSession, wanted: set[str]) -> int:
    """Their operation is over, or their savepoint does not wait for them."""
    ended = 0
    for task in (await session.scalars(select(TaskRow).where(TaskRow.ended_at.is_(None)))).all():
        savepoint = await session.get(SavepointRow, str(task.arguments.get("savepoint")))
        waits = savepoint is not None and savepoint.state in UNDER_WAY
        if not waits or (task.operation is not None and task.operation not in wanted):
            ended += await tasks.end(session, task)
    return ended


async def _lost(session: AsyncSession) -> int:
    """Nobody wants them, and the host that was to end them is lost."""
    query = select(RunRow).join(AgentRow, AgentRow.id == RunRow.agent).order_by(RunRow.id)
    unwanted = (
        RunRow.ended_at.is_(None),
        RunRow.state != "LOST",
        RunRow.order["goal"].as_string() == "GONE",
        AgentRow.state == HostState.LOST,
    )
    rows = (await session.scalars(query.where(*unwanted))).all()
    for run in rows:
        await runs.lose(session, run)
    return len(rows)


async def _ends(session: AsyncSession) -> int:
    """Each recovery ends, for one reason or another."""
    moment = await now(session)
    query = select(RecoveryRow, JobRow).join(JobRow, JobRow.id == RecoveryRow.job)
    ended = 0
    for row, job in (await session.execute(query.where(RecoveryRow.ended_at.is_(None)))).all():
        outcome = await _outcome(session, row, job, moment)
        if outcome is not None:
            await recoveries.end(session, row, outcome)
            ended += 1
    return ended


async def _outcome(session: AsyncSession, row: RecoveryRow, job: JobRow, moment: datetime) -> recoveries.Outcome | None:
    if job.state in jobs.SETTLED or job.deleted_at is not None:
        return "abandoned"
    failed, newest = row.body["failed_generation"], await recoveries.newest_since(session, row)
    # Its first epoch was told before it was begun; or the generation that was said to have failed goes on.
    alive = newest == failed == job.generation and job.state == JobState.RUNNING
    if alive and job.moving is not None and row.body["cause"] in recoveries.PLANNED:
        return None  # the driver works until the standby has the log
    if newest >= (row.body.get("generation") or failed + 1) or alive:
        return "overtaken"
    idle = job.state == JobState.RUNNING and moment - job.state_since > timedelta(seconds=RECOVER_S)
    return "idle" if idle and moment - row.started_at > timedelta(seconds=RECOVER_S) else None
