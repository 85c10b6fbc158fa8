"""Ends operations, and has agents do what some of them need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.jobs import DesiredState, Failure, JobState, StopMode
from clonos_api.reconcile import saving
from clonos_api.reconcile.operations import Completed, Failed, Seen, judge, overtaken
from clonos_api.reconcile.reading import Case, Place
from clonos_api.reconcile.transitions import Asked
from clonos_api.store import jobs, moves, operations, tasks
from clonos_api.store.tables import AgentRow, JobRow, OperationRow, RunRow, SavepointRow, TaskRow

_PLANNED = frozenset({"move", "upgrade"})
_COPIES = frozenset({"savepoint", "delete-savepoint"})


@dataclass
class Pending:
    """An operation under way, with what its end depends on."""

    operation: OperationRow
    job: JobRow | None
    run_agent: str | None
    savepoint: SavepointRow | None
    task_agent: str | None


async def read(session: AsyncSession) -> list[Pending]:
    """All operations under way."""
    rows = await operations.in_progress(session)
    if not rows:
        return []
    wanted = {row.job for row in rows if row.job}
    found = await session.execute(
        select(JobRow, RunRow.agent).outerjoin(RunRow, RunRow.id == JobRow.run).where(JobRow.id.in_(wanted))
    )
    of_jobs = {job.id: (job, agent) for job, agent in found}
    open_tasks = select(TaskRow.operation, TaskRow.agent).where(TaskRow.ended_at.is_(None))
    agents = dict((await session.execute(open_tasks.where(TaskRow.operation.in_([r.id for r in rows])))).all())
    pending = []
    for row in rows:
        job, run_agent = of_jobs.get(row.job or "", (None, None))
        savepoint = await _savepoint(session, row)
        pending.append(Pending(row, job, run_agent, savepoint, agents.get(row.id)))
    return pending


async def _savepoint(session: AsyncSession, row: OperationRow) -> SavepointRow | None:
    if row.kind in _COPIES:
        return await session.get(SavepointRow, str(row.arguments.get("savepoint")), populate_existing=True)
    if not _wants_savepoint(row):
        return None
    query = select(SavepointRow).where(SavepointRow.job == row.job, SavepointRow.created_at >= row.created_at)
    return (await session.scalars(query.order_by(SavepointRow.created_at.desc()).limit(1))).first()


def is_due(one: Pending, hosts: list[AgentRow], place: Place) -> bool:
    """Whether there is something to write about it."""
    return _verdict(one) is not None or _task_for(one, hosts, place) is not None


async def end(session: AsyncSession, one: Pending, hosts: list[AgentRow], place: Place) -> None:
    """End an operation, or give an agent its task.

    Raises:
        Fenced: Somebody changed it since it was read, or another replica leads.
    """
    if one.job is not None:
        # It may have been read before the operation was begun: then it does not know of what was asked for.
        one.job = await session.get(JobRow, one.job.id, populate_existing=True)
    verdict = _verdict(one)
    if verdict is not None and one.task_agent is not None:
        await _end_tasks(session, one.operation)
    if isinstance(verdict, Completed):
        if one.operation.kind == "delete" and one.job is not None and one.job.deleted_at is None:
            await jobs.delete(session, one.job)
        await operations.complete(session, one.operation, verdict.result)
        return
    if isinstance(verdict, Failed):
        await operations.fail(session, one.operation, verdict.failure)
        return
    agent = _task_for(one, hosts, place)
    if agent is None or one.savepoint is None or one.job is None:
        return
    if one.task_agent is not None:
        await _end_tasks(session, one.operation)
    if one.operation.kind == "savepoint":
        await saving.copy(session, one.savepoint, agent, _checkpoint(one.job, place), one.operation.id)
    else:
        await saving.remove(session, one.savepoint, agent, one.operation.id)


async def expire(session: AsyncSession) -> int:
    """Give up operations whose deadline is over, and what was to be done for them; how many."""
    rows = await operations.expire(session)
    for row in rows:
        waiting = await tasks.open_of_operation(session, row.id)
        if row.kind in _COPIES:
            savepoint = await session.get(SavepointRow, str(row.arguments.get("savepoint")), populate_existing=True)
            if savepoint is not None:
                failure = Failure.model_validate(row.failure)
                await saving.give_up(session, savepoint, [task.agent for task in waiting], failure)
        await _end_tasks(session, row)
    return len(rows)


async def _end_tasks(session: AsyncSession, operation: OperationRow) -> None:
    for task in await tasks.open_of_operation(session, operation.id):
        await tasks.end(session, task)


def _verdict(one: Pending) -> Completed | Failed | None:
    row, job = one.operation, one.job
    if job is None:
        return Failed(_gone("The job"))
    if row.kind in _COPIES:
        if one.savepoint is None:
            return Failed(_gone("The savepoint"))
        over = one.savepoint.state not in saving.UNDER_WAY
        return Failed(_failure_of(one.savepoint) or _gone("The savepoint")) if over else None
    if job.deleted_at is not None:
        return Completed() if row.kind in ("delete", "cancel") else Failed(_gone("The job"))
    if row.kind in _PLANNED:
        # Its end is written with that of the move itself.
        moving = moves.of(job)
        return None if moving is not None and moving.operation == row.id else overtaken("another move")
    saved = one.savepoint.id if one.savepoint is not None and one.savepoint.state == "COMPLETED" else None
    return judge(
        row.kind,
        Seen(
            state=JobState(job.state),
            asked=Asked(DesiredState(job.desired_state), job.restart_nonce != job.observed_nonce),
            failure=Failure.model_validate(job.failure) if job.failure else None,
            run=job.run,
            generation=job.generation,
            wants_savepoint=_wants_savepoint(row),
            savepoint=saved,
        ),
    )


def _task_for(one: Pending, hosts: list[AgentRow], place: Place) -> str | None:
    """The agent that is to have the operation's task and has it not."""
    if one.operation.kind not in _COPIES or one.savepoint is None or one.job is None:
        return None
    where = _checkpoint(one.job, place) if one.operation.kind == "savepoint" else one.savepoint.location
    if one.task_agent is not None and any(h.id == one.task_agent and h.state in ("READY", "DRAINING") for h in hosts):
        return None
    agent = saving.agent_for(one.job, one.run_agent, hosts, where, place)
    return agent if agent != one.task_agent else None


def _checkpoint(job: JobRow, place: Place) -> str:
    return Case(job, None).checkpoint(place)


def _wants_savepoint(row: OperationRow) -> bool:
    stop: Any = row.arguments.get("stop")
    return row.kind == "stop" and isinstance(stop, dict) and stop.get("mode") == StopMode.CHECKPOINT


def _failure_of(savepoint: SavepointRow) -> Failure | None:
    return Failure.model_validate(savepoint.failure) if savepoint.failure else None


def _gone(what: str) -> Failure:
    return Failure(error="not-found", what=f"{what} is not there any more.", domain="user")
