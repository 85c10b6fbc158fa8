"""Rows of events, numbered in the order of their commits.

A database sequence assigns numbers before the commit. Of two concurrent transactions the one with the smaller number
could commit last, and a reader that has seen the larger number would miss it. So appending takes a global lock right
before the insert, at the end of the transaction, and holds it until the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import func, insert, or_, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.event_types import EventType
from clonos_api.store.db.clock import now
from clonos_api.store.db.commit_hooks import before_commit
from clonos_api.store.db.notifier import notify
from clonos_api.store.tables import EventRow

_APPEND_POSITION: Final = 100  # after all other hooks
_LOCK: Final = 0x636C6F6E6F73  # "clonos"
_APPENDED: Final = "clonos.events"


def append(
    session: AsyncSession,
    kind: EventType,
    *,
    job: str | None = None,
    host: str | None = None,
    data: dict[str, Any] | None = None,
) -> None:
    """Append an event of type `kind`, about a job or host (ids), when this transaction commits."""
    appended: list[dict[str, Any]] = session.info.setdefault(_APPENDED, [])
    appended.append({"type": kind, "job": job, "host": host, "data": data or {}})
    before_commit(session, _APPEND_POSITION, _write)


async def _write(session: AsyncSession) -> None:
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    at = await now(session)
    rows = [{**event, "at": at} for event in session.info.pop(_APPENDED)]
    numbers = await session.scalars(insert(EventRow).returning(EventRow.seq, sort_by_parameter_order=True), rows)
    notify(session, max(numbers.all()))


async def after(
    session: AsyncSession,
    seq: int,
    *,
    job: str | None = None,
    types: Sequence[str] | None = None,
    since: datetime | None = None,
    limit: int = 500,
    newest: bool = False,
) -> list[EventRow]:
    """Events after number `seq`, oldest first.

    `types` are types (``job.state``) or their first parts (``job``); an event matches any of them. If there are more
    than `limit`, `newest` selects the newest instead of the oldest.
    """
    query = select(EventRow).where(EventRow.seq > seq).limit(limit)
    if job is not None:
        query = query.where(EventRow.job == job)
    if types:
        parts = [EventRow.type.startswith(f"{type}.", autoescape=True) for type in types]
        query = query.where(or_(EventRow.type.in_(types), *parts))
    if since is not None:
        query = query.where(EventRow.at >= since)
    rows = list(await session.scalars(query.order_by(EventRow.seq.desc() if newest else EventRow.seq)))
    return rows[::-1] if newest else rows


async def bounds(session: AsyncSession) -> tuple[int, int]:
    """Return the numbers of the oldest and the newest stored event; (0, 0) if there are none."""
    oldest, newest = (await session.execute(select(func.min(EventRow.seq), func.max(EventRow.seq)))).one()
    return oldest or 0, newest or 0
