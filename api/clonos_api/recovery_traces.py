"""Sends a trace of each recovery that has ended, while this replica leads: of several only one tells."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import StoreAway
from clonos.settings import TraceSettings
from clonos.tracing import Part, Traces, wanted
from clonos_api import lookups, views
from clonos_api.feed import EventFeed, Wanted
from clonos_api.services import Services
from clonos_api.store.database import Database
from clonos_api.store.tables import JobRow, RecoveryRow

_WAIT_S: Final = 15.0
_ENDED: Final = Wanted(types=("job.recovery.ended",))
_log = structlog.get_logger("clonos.api")


async def run(services: Services, settings: TraceSettings) -> None:
    """Until cancelled; at once over where nobody wants traces."""
    traces = wanted("clonos-control-plane", settings)
    if traces is None:
        return
    try:
        await follow(services.feed, services.database, services.settings.replica, traces)
    finally:
        await asyncio.to_thread(traces.close)


async def follow(feed: EventFeed, database: Database, replica: str, traces: Traces) -> None:
    """Trace what ends from now on."""
    await feed.started()
    seen = feed.newest
    while not feed.closed:
        await feed.wait(seen, _WAIT_S)
        try:
            seen = await trace_after(seen, feed, database, replica, traces)
        except StoreAway as error:
            _log.warning("A recovery is not traced", why=error.what)


async def trace_after(seen: int, feed: EventFeed, database: Database, replica: str, traces: Traces) -> int:
    """Trace what has ended after event number `seen`, if `replica` leads; the number after which to go on.

    Raises:
        StoreAway: The database does not answer; nothing was traced.
    """
    told, end = await feed.after(seen, _ENDED)
    if told:
        async with database.reading() as session:
            leader = await lookups.leader(session)
            if leader is not None and leader.startswith(f"{replica}:"):
                for one in told:
                    await _trace(session, str(one.event.data["recovery"]), traces)
    return end


async def _trace(session: AsyncSession, recovery: str, traces: Traces) -> None:
    row = await session.get(RecoveryRow, recovery)
    job = await session.get(JobRow, row.job) if row is not None else None
    if row is None or job is None or row.ended_at is None:
        return  # retention was faster
    found = views.recovery(row)
    parts = [Part(one.name, one.started_at.timestamp(), one.duration_ms) for one in found.phases]
    began, ended = found.started_at.timestamp(), row.ended_at.timestamp()
    traces.recovery(job.name, began, ended, found.model_dump(mode="json"), parts)
