"""Sends a trace of each ended recovery. Only the leader sends, so that each recovery has one trace."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import DatabaseUnavailable
from clonos.settings import TraceSettings
from clonos.telemetry.tracing import Part, Traces, open_traces
from clonos_api.store import lookups, views
from clonos_api.store.db.database import Database
from clonos_api.store.tables import JobRow, RecoveryRow
from clonos_api.streams.feed import EventFeed, EventFilter

_WAIT_S: Final = 15.0
_ENDED: Final = EventFilter(types=("job.recovery.ended",))
_log = structlog.get_logger("clonos.api")


async def run(feed: EventFeed, database: Database, replica: str, settings: TraceSettings) -> None:
    """Send a trace of each recovery that ends while `replica` is the leader, until cancelled; return at once if
    traces are disabled.
    """
    traces = open_traces("clonos-control-plane", settings)
    if traces is None:
        return
    try:
        await follow(feed, database, replica, traces)
    finally:
        await asyncio.to_thread(traces.close)


async def follow(feed: EventFeed, database: Database, replica: str, traces: Traces) -> None:
    """Send a trace of each recovery that ends from now on, while `replica` is the leader, until the feed is closed."""
    await feed.started()
    last_seen = feed.newest
    while not feed.closed:
        await feed.wait(last_seen, _WAIT_S)
        try:
            last_seen = await trace_after(last_seen, feed, database, replica, traces)
        except DatabaseUnavailable as error:
            _log.warning("A recovery is not traced", why=error.what)


async def trace_after(last_seen: int, feed: EventFeed, database: Database, replica: str, traces: Traces) -> int:
    """Send traces of the recoveries that end after event number `last_seen`, if `replica` is the leader; return
    the last event number read.
    """
    ended, last = await feed.after(last_seen, _ENDED)
    if ended:
        async with database.reading() as session:
            if await lookups.leads(session, replica):
                for entry in ended:
                    await _trace(session, str(entry.event.data["recovery"]), traces)
    return last


async def _trace(session: AsyncSession, recovery: str, traces: Traces) -> None:
    row = await session.get(RecoveryRow, recovery)
    job = await session.get(JobRow, row.job) if row is not None else None
    if row is None or job is None or row.ended_at is None:
        return  # retention has removed it
    recovered = views.recovery(row)
    parts = [Part(phase.name, phase.started_at.timestamp(), phase.duration_ms) for phase in recovered.phases]
    began, ended = recovered.started_at.timestamp(), row.ended_at.timestamp()
    traces.recovery(job.name, began, ended, recovered.model_dump(mode="json"), parts)
