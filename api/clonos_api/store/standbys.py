"""Rows of standbys: warm second drivers of jobs. A standby has the same id as its run.

The state follows the reports of the standby's agent; the reconciler writes ``PROMOTING`` when it promotes the standby.
Event: ``standby.state``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.hosts import RunSpec
from clonos.standby.states import StandbyState
from clonos_api.store import events
from clonos_api.store.columns import JobFigures, StandbyBody
from clonos_api.store.db.clock import now
from clonos_api.store.db.paging import FIRST, Page, Window, by_time
from clonos_api.store.db.swap import swap
from clonos_api.store.tables import JobRow, RunRow, StandbyRow

_S = StandbyState
# States in which a standby can be promoted.
WAITING: Final = (_S.STARTING, _S.WARMING, _S.READY, _S.STALE)
_WAITING: Final = (
    select(StandbyRow, RunRow)
    .join(RunRow, RunRow.id == StandbyRow.id)
    .where(StandbyRow.state.in_(WAITING))
    .order_by(StandbyRow.id)
)


async def create(session: AsyncSession, job: JobRow, spec: RunSpec, host: str, why: str) -> StandbyRow:
    """Insert the standby for a run with the specification `spec`; `why` is the reason for the host (id)."""
    row = StandbyRow(
        id=spec.run,
        job=job.id,
        host=host,
        mode="dedicated",
        state=_S.STARTING,
        since=await now(session),
        body=StandbyBody(placement_reason=why),
    )
    session.add(row)
    await session.flush()
    return row


async def waiting(session: AsyncSession) -> list[tuple[StandbyRow, RunRow]]:
    """All standbys that can be promoted, with their runs, oldest first."""
    return [(standby, run) for standby, run in (await session.execute(_WAITING)).all()]


async def update_from_run(session: AsyncSession, run: RunRow) -> None:
    """Update the state of a standby after its run has changed. Runs that are not standbys are ignored."""
    row = await session.get(StandbyRow, run.id, populate_existing=True)
    if row is None or row.state not in (*WAITING, _S.PROMOTING):
        return
    if row.state == _S.PROMOTING and run.driver_state == "RUNNING" and run.state != "LOST":
        state = _S.PROMOTED
    elif run.ended_at is not None or run.state == "LOST":
        state = _S.FAILED
    elif row.state == _S.PROMOTING:
        # Its process exited: a new process may start as the job's driver, but that is not a promotion.
        state = _S.FAILED if run.state == "EXITED" else _S.PROMOTING
    elif run.state != "EXITED" and run.driver_state in ("CLAIMING", "RECONCILING", "RUNNING"):
        return  # it promoted itself; the leader will record that
    else:
        # A standby that stops with its agent cannot take over.
        reported = run.driver_state in WAITING and run.state not in ("STOPPING", "EXITED")
        state = _S(run.driver_state) if reported and run.driver_state else _S.STARTING
    await move(session, row, state)


async def record(session: AsyncSession, standby: str, **report: dict[str, int] | float) -> None:
    """Record a report of a standby.

    Args:
        session: The transaction.
        standby: Its id.
        report: ``epochs``: how far it has read the causal log, query → newest committed epoch; ``epoch_s``: duration of
            its shortest rehearsal of an epoch.
    """
    row = await session.get(StandbyRow, standby, populate_existing=True)
    if row is not None:
        row.body = msgspec.structs.replace(row.body, **report)
        await session.flush()


async def lags(session: AsyncSession, rows: Iterable[StandbyRow]) -> dict[str, int]:
    """Return the lag of each standby, by id: the number of committed epochs of its most delayed query that it has not
    read.

    Standbys that have not reported, or can no longer be promoted, are left out.
    """
    waiting = [row for row in rows if row.state in WAITING and row.body.epochs and row.job]
    query = select(JobRow.id, JobRow.metrics).where(JobRow.id.in_({row.job for row in waiting}))
    figures_by_job: dict[str, JobFigures | None] = dict((await session.execute(query)).all()) if waiting else {}
    lags_by_standby = {}
    for row in waiting:
        queries = (figures_by_job.get(row.job or "") or JobFigures()).queries
        known = row.body.epochs or {}
        behind = [figures.epoch - known.get(name, -1) for name, figures in queries.items()]
        lags_by_standby[row.id] = max([0, *behind])
    return lags_by_standby


async def move(session: AsyncSession, row: StandbyRow, state: StandbyState) -> StandbyRow:
    """Change the state of a standby in its row, and append the event."""
    if row.state == state:
        return row
    row = await swap(session, row, state=str(state), since=await now(session))
    data = {"standby": row.id, "state": row.state}
    events.append(session, "standby.state", job=row.job, host=row.host, data=data)
    return row


async def page(
    session: AsyncSession,
    window: Window = FIRST,
    *,
    job: str | None = None,
    states: Sequence[StandbyState] | None = None,
) -> Page[StandbyRow]:
    """One page of the standbys of one job or of all jobs, in all states or in some, newest first."""
    query = select(StandbyRow)
    if states is not None:
        query = query.where(StandbyRow.state.in_(states))
    if job is not None:
        query = query.where(StandbyRow.job == job)
    return await by_time(session, query, StandbyRow.since, StandbyRow.id, window)
