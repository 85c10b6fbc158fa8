"""Standbys: runs that only wait. A standby has the id of its run.

Its state is what its run's agent reports; ``PROMOTING`` is written here, when it is ordered to take over. Events:
``standby.state``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.hosts import RunOrder
from clonos.standby.states import StandbyState
from clonos_api.store import events
from clonos_api.store.clock import now
from clonos_api.store.paging import DEFAULT, Page, by_time
from clonos_api.store.swap import swap
from clonos_api.store.tables import JobRow, RunRow, StandbyRow

_S = StandbyState
# It can still be told to take over.
WAITING: Final = (_S.STARTING, _S.WARMING, _S.READY, _S.STALE)


async def create(session: AsyncSession, job: JobRow, order: RunOrder, agent: str, why: str) -> StandbyRow:
    """The record of a run that was created to wait."""
    row = StandbyRow(
        id=order.run,
        job=job.id,
        agent=agent,
        mode="dedicated",
        state=_S.STARTING,
        since=await now(session),
        body={"why_here": why},
    )
    session.add(row)
    await session.flush()
    return row


async def waiting(session: AsyncSession) -> list[tuple[StandbyRow, RunRow]]:
    """All that can still be told to take over, with their runs, oldest first."""
    query = (
        select(StandbyRow, RunRow)
        .join(RunRow, RunRow.id == StandbyRow.id)
        .where(StandbyRow.state.in_(WAITING))
        .order_by(StandbyRow.id)
    )
    return [(standby, run) for standby, run in (await session.execute(query)).all()]


async def told(session: AsyncSession, run: RunRow) -> None:
    """Something is new about the run of a standby."""
    row = await session.get(StandbyRow, run.id, populate_existing=True)
    if row is None or row.state not in (*WAITING, _S.PROMOTING):
        return
    if row.state == _S.PROMOTING and run.driver_state == "RUNNING" and run.state != "LOST":
        state = _S.PROMOTED
    elif run.ended_at is not None or run.state == "LOST":
        state = _S.FAILED
    elif row.state == _S.PROMOTING:
        # Its process ended: another one may be started as the job's driver, but it takes over from nobody.
        state = _S.FAILED if run.state == "EXITED" else _S.PROMOTING
    elif run.state != "EXITED" and run.driver_state in ("CLAIMING", "RECONCILING", "RUNNING"):
        return  # it took over by itself; the leader will say so
    else:
        said = run.driver_state in WAITING and run.state != "EXITED"
        state = _S(run.driver_state) if said and run.driver_state else _S.STARTING
    await move(session, row, state)


async def followed(session: AsyncSession, standby: str, epochs: dict[str, int]) -> None:
    """How far it has read the causal log: query → newest epoch that has ended."""
    row = await session.get(StandbyRow, standby, populate_existing=True)
    if row is not None:
        row.body = {**row.body, "epochs": epochs}
        await session.flush()


async def lags(session: AsyncSession, rows: Iterable[StandbyRow]) -> dict[str, int]:
    """Standby → epochs that have ended and that it has not read of yet, of the query that it is most behind with."""
    waiting = [row for row in rows if row.state in WAITING and row.body.get("epochs") and row.job]
    query = select(JobRow.id, JobRow.metrics).where(JobRow.id.in_({row.job for row in waiting}))
    metrics: dict[str, Any] = dict((await session.execute(query)).all()) if waiting else {}
    found = {}
    for row in waiting:
        queries = (metrics.get(row.job or "") or {}).get("queries") or {}
        known = row.body["epochs"]
        behind = [int(one.get("epoch", -1)) - known.get(name, -1) for name, one in queries.items()]
        found[row.id] = max([0, *behind])
    return found


async def move(session: AsyncSession, row: StandbyRow, state: StandbyState) -> StandbyRow:
    """Another state.

    Raises:
        Fenced: Somebody changed it since.
    """
    if row.state == state:
        return row
    row = await swap(session, row, state=str(state), since=await now(session))
    data = {"standby": row.id, "state": row.state}
    events.append(session, "standby.state", job=row.job, agent=row.agent, data=data)
    return row


async def page(
    session: AsyncSession,
    *,
    job: str | None = None,
    states: Sequence[StandbyState] | None = None,
    limit: int = DEFAULT,
    starting_after: str | None = None,
) -> Page[StandbyRow]:
    """Standbys, of all jobs or of one, in any state or in one of these, newest first."""
    query = select(StandbyRow)
    if states is not None:
        query = query.where(StandbyRow.state.in_(states))
    if job is not None:
        query = query.where(StandbyRow.job == job)
    return await by_time(session, query, StandbyRow.since, StandbyRow.id, limit=limit, starting_after=starting_after)
