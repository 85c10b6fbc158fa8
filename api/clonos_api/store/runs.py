"""Runs: a job's placements on hosts, what their agents are ordered and what they report.

Events: ``run.created``, ``run.state``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.hosts import RunOrder, RunReport, TaskOrder, Work
from clonos_api.store import agents, events, standbys
from clonos_api.store.clock import now
from clonos_api.store.jobs import as_written
from clonos_api.store.paging import DEFAULT, Page, by_time
from clonos_api.store.rows import found
from clonos_api.store.swap import swap
from clonos_api.store.tables import AgentRow, JobRow, RunRow, TaskRow


async def create(session: AsyncSession, job: JobRow, agent: AgentRow, order: RunOrder, *, why: str = "") -> RunRow:
    """Place a job on an agent; `order.run` (`rows.new_id`) is the id of the new run, `why` says why there."""
    row = RunRow(
        id=order.run,
        token=1,
        job=job.id,
        agent=agent.id,
        order=_dumped(order),
        state="PENDING",
        created_at=await now(session),
    )
    session.add(row)
    await session.flush()
    agents.bump(session, agent.id)
    data = {"run": row.id, "agent": agent.name, "version": order.version, "why": why}
    events.append(session, "run.created", job=job.id, agent=agent.id, data=data)
    return row


async def order(session: AsyncSession, run: RunRow, order: RunOrder) -> RunRow:
    """Change what a run's agent is ordered.

    Raises:
        Fenced: Somebody changed the run since.
    """
    row = await swap(session, run, order=_dumped(order))
    agents.bump(session, row.agent)
    return row


async def lock(session: AsyncSession, runs: Sequence[str]) -> None:
    """Lock runs that are about to be changed, in the order in which reports on them are taken in."""
    if len(runs) > 1:
        query = select(RunRow.id).where(RunRow.id.in_(runs)).order_by(RunRow.id)
        await session.execute(query.with_for_update(key_share=True))


async def report(session: AsyncSession, agent: str, reports: Sequence[RunReport]) -> list[RunRow]:
    """Take in how an agent's runs are doing; the rows that changed.

    Reports on runs that are over, or not this agent's, are left out.
    """
    # Most heartbeats have no news: look first, and at nothing that is large; lock then.
    told = await news(session, agent, reports)
    if not told:
        return []
    query = select(RunRow).where(*_open(agent, told)).order_by(RunRow.id).with_for_update()
    locked = await session.scalars(query.execution_options(populate_existing=True))
    changed = []
    for row in locked.all():
        changes = _changes(row, told[row.id])
        if told[row.id].final:
            changes["ended_at"] = told[row.id].ended_at or await now(session)
        before = row.state
        row = await swap(session, row, **changes)
        changed.append(row)
        # Its last epoch is out, although its process has not ended yet: a standby may wait for that.
        stopped = changes.get("driver_state") == "STOPPED"
        if row.state != before or row.ended_at is not None or stopped:
            _tell(session, row)
        await _told(session, row)
    return changed


async def news(session: AsyncSession, agent: str, reports: Sequence[RunReport]) -> dict[str, RunReport]:
    """By run, those reports that say anything new."""
    told = {one.run: one for one in reports}
    if not told:
        return {}
    known = await session.execute(select(*_REPORTED).where(*_open(agent, told)))
    return {row.id: told[row.id] for row in known if _changes(row, told[row.id])}


def _open(agent: str, runs: Iterable[str]) -> tuple[ColumnElement[bool], ...]:
    return RunRow.agent == agent, RunRow.id.in_(runs), RunRow.ended_at.is_(None)


_REPORTED: Final = (
    RunRow.id,
    RunRow.state,
    RunRow.driver_state,
    RunRow.attempts,
    RunRow.pid,
    RunRow.exit_code,
    RunRow.failure,
    RunRow.checkpoint_bytes,
    RunRow.in_row,
    RunRow.started_at,
    RunRow.ended_at,
)


def _changes(row: Any, told: RunReport) -> dict[str, Any]:
    reported = {
        "state": str(told.state),
        "driver_state": told.driver_state,
        "attempts": told.attempts,
        "pid": told.pid,
        "exit_code": told.exit_code,
        "failure": told.failure.model_dump(mode="json") if told.failure else None,
        "started_at": told.started_at or row.started_at,
        "checkpoint_bytes": told.checkpoint_bytes or row.checkpoint_bytes,
        "in_row": told.in_row,
    }
    changes = {name: value for name, value in reported.items() if getattr(row, name) != value}
    if told.final and row.ended_at is None:
        changes.setdefault("state", "EXITED")
    return changes


async def lose(session: AsyncSession, run: RunRow) -> RunRow:
    """The host of a run is lost. It stays open: an agent that comes back is ordered what the run's order says then.

    Raises:
        Fenced: Somebody changed the run since.
    """
    row = await swap(session, run, state="LOST")
    _tell(session, row)
    await _told(session, row)
    return row


async def end(session: AsyncSession, run: RunRow) -> RunRow:
    """Call a run ended without its agent saying so, for instance because it never had it; its order goes.

    Raises:
        Fenced: Somebody changed the run since.
    """
    row = await swap(session, run, ended_at=await now(session))
    agents.bump(session, row.agent)
    _tell(session, row)
    await _told(session, row)
    return row


async def get(session: AsyncSession, run: str) -> RunRow:
    """A run.

    Raises:
        NotFound: There is none.
    """
    return found(await session.get(RunRow, run, populate_existing=True), f"run {run}")


async def of_job(
    session: AsyncSession, job: str, *, limit: int = DEFAULT, starting_after: str | None = None
) -> Page[RunRow]:
    """A job's runs, newest first."""
    query = select(RunRow).where(RunRow.job == job)
    return await by_time(session, query, RunRow.created_at, RunRow.id, limit=limit, starting_after=starting_after)


async def open_of_job(session: AsyncSession, job: str) -> list[RunRow]:
    """A job's runs that have not ended, oldest first; more than one while a lost host has not come back."""
    query = select(RunRow).where(RunRow.job == job, RunRow.ended_at.is_(None)).order_by(RunRow.id)
    return list(await session.scalars(query.execution_options(populate_existing=True)))


async def open_of_agent(session: AsyncSession, agent: str) -> list[RunRow]:
    """An agent's runs that have not ended, by id."""
    query = select(RunRow).where(RunRow.agent == agent, RunRow.ended_at.is_(None)).order_by(RunRow.id)
    return list(await session.scalars(query.execution_options(populate_existing=True)))


async def work(session: AsyncSession, agent: str) -> Work:
    """All that an agent is to do."""
    # The revision first: orders that are newer than it only make the agent ask once more.
    revision = (await session.execute(select(AgentRow.revision).where(AgentRow.id == agent))).scalar_one()
    tasks = await session.scalars(
        select(TaskRow).where(TaskRow.agent == agent, TaskRow.ended_at.is_(None)).order_by(TaskRow.id)
    )
    return Work(
        revision=revision,
        runs=[RunOrder.model_validate(run.order) for run in await open_of_agent(session, agent)],
        tasks=[
            TaskOrder.model_validate({"task": task.id, "kind": task.kind, "arguments": task.arguments})
            for task in tasks
        ],
    )


async def _told(session: AsyncSession, row: RunRow) -> None:
    if "standby" in row.order:
        await standbys.told(session, row)


def _tell(session: AsyncSession, row: RunRow) -> None:
    data = {
        "run": row.id,
        "state": row.state,
        "exit_code": row.exit_code,
        "attempts": row.attempts,
        "ended": row.ended_at is not None,
    }
    events.append(session, "run.state", job=row.job, agent=row.agent, data=data)


def _dumped(order: RunOrder) -> dict[str, Any]:
    return {**order.model_dump(mode="json"), "spec": as_written(order.spec)}
