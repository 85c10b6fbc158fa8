"""Reads what explains a recovery: the epochs on both sides of the failure, and the job's earlier recoveries."""

from __future__ import annotations

from typing import Final

from sqlalchemy import case, func, not_, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.incidents import (
    Incident,
    ListedRecovery,
    QueryContinuity,
    compare,
    incident,
    loss_of,
    sentence,
)
from clonos.resources.jobs import Recovery
from clonos_api.store import counters, recoveries, verifications, views
from clonos_api.store.db.clock import now
from clonos_api.store.db.paging import Page, Window
from clonos_api.store.tables import EpochRow, JobRow, RecoveryRow

_EARLIER: Final = 200  # as many as retention keeps


async def get(session: AsyncSession, job: JobRow, recovery: str) -> Incident:
    """Return a recovery of a job with its explanation, by the recovery's id."""
    row = await recoveries.get(session, job.id, recovery)
    shown = views.recovery(row)
    at = await now(session)
    queries = await _queries(session, shown)
    diverged = (await counters.of_job(session, job.id)).get("diverged_lanes", 0)
    verification = (await verifications.newest(session, job=job.id)).get(job.id)
    exactly_once = _exactly_once(job)
    loss = loss_of(shown, queries, exactly_once=exactly_once, diverged=diverged, verification=verification)
    comparison = compare(shown, await _earlier(session, shown))
    since = recoveries.silent_since(row, job.figures)
    return incident(shown, job.name, loss, comparison, at=at, silent_since=since)


async def page(session: AsyncSession, window: Window) -> Page[ListedRecovery]:
    """One page of the recoveries of all jobs, newest first."""
    result = await recoveries.page(session, None, window)
    shown = [views.recovery(row) for row in result.rows]
    query = select(JobRow.id, JobRow.name).where(JobRow.id.in_({recovery.job for recovery in shown}))
    names = dict((await session.execute(query)).all()) if shown else {}
    listed = [
        ListedRecovery(**dict(recovery), job_name=names.get(recovery.job, recovery.job), summary=sentence(recovery))
        for recovery in shown
    ]
    return Page(listed, result.next)


def _exactly_once(job: JobRow) -> bool:
    """Whether the newest driver, or else the specification, delivers exactly once and keeps a causal log."""
    spec, figures = job.spec.spec, job.figures
    delivery = figures.delivery or {"": spec.delivery}
    depth = figures.sharing_depth or spec.sharing_depth
    return "at-least-once" not in delivery.values() and depth != "0"


async def _earlier(session: AsyncSession, recovery: Recovery) -> list[Recovery]:
    rows = (
        select(RecoveryRow)
        .where(RecoveryRow.job == recovery.job, RecoveryRow.started_at < recovery.started_at)
        .order_by(RecoveryRow.started_at.desc())
        .limit(_EARLIER)
    )
    return [views.recovery(row) for row in await session.scalars(rows)]


async def _queries(session: AsyncSession, recovery: Recovery) -> list[QueryContinuity]:
    """Return the epochs of each query before and after the failure.

    The generations that finished them decide. If none is newer than the failed one, it continued: then the times of the
    epochs decide, once the recovery has ended.
    """
    epoch, generation = EpochRow.epoch, EpochRow.body["generation"].as_integer()
    claimed, earlier = generation > recovery.failed_generation, EpochRow.completed_at < recovery.started_at
    rows = (
        select(
            EpochRow.query,
            func.max(case((not_(claimed), epoch))).label("older"),
            func.min(case((claimed, epoch))).label("newer"),
            func.max(case((earlier, epoch))).label("earlier"),
            func.min(case((not_(earlier), epoch))).label("later"),
        )
        .where(EpochRow.job == recovery.job)
        .group_by(EpochRow.query)
        .order_by(EpochRow.query)
    )
    sides = (await session.execute(rows)).all()
    if recovery.ended_at is None or any(side.newer is not None for side in sides):
        return [QueryContinuity(side.query, side.older, side.newer) for side in sides]
    return [QueryContinuity(side.query, side.earlier, side.later) for side in sides]
