"""Events: what happened, numbered in the order in which it was committed.

Numbers come from a sequence, which gives them out before the commit: of two transactions the one with the smaller
number may commit last, and a reader that has seen the larger one would never look back. So who appends takes one lock
right before the insert, at the end of the transaction, and holds it through the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.store.clock import now
from clonos_api.store.closing import at_the_end
from clonos_api.store.notifier import wakes
from clonos_api.store.tables import EventRow

LAST_OF_ALL: Final = 100
_LOCK: Final = 0x636C6F6E6F73  # "clonos"
_APPENDED: Final = "clonos.events"


def append(
    session: AsyncSession,
    kind: str,
    *,
    job: str | None = None,
    agent: str | None = None,
    data: dict[str, Any] | None = None,
) -> None:
    """Have an event appended when this transaction commits."""
    appended: list[dict[str, Any]] = session.info.setdefault(_APPENDED, [])
    appended.append({"type": kind, "job": job, "agent": agent, "data": data or {}})
    at_the_end(session, LAST_OF_ALL, _write)


async def _write(session: AsyncSession) -> None:
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    at = await now(session)
    rows = [{**one, "at": at} for one in session.info.pop(_APPENDED)]
    made = await session.scalars(insert(EventRow).returning(EventRow.seq, sort_by_parameter_order=True), rows)
    wakes(session, max(made.all()))


async def after(
    session: AsyncSession,
    seq: int,
    *,
    job: str | None = None,
    types: Sequence[str] | None = None,
    limit: int = 500,
) -> list[EventRow]:
    """Events after number `seq`, oldest first."""
    query = select(EventRow).where(EventRow.seq > seq).order_by(EventRow.seq).limit(limit)
    if job is not None:
        query = query.where(EventRow.job == job)
    if types:
        query = query.where(EventRow.type.in_(types))
    return list(await session.scalars(query))


async def bounds(session: AsyncSession) -> tuple[int, int]:
    """The oldest number that is still there and the newest; (0, 0) without any."""
    oldest, newest = (await session.execute(select(func.min(EventRow.seq), func.max(EventRow.seq)))).one()
    return oldest or 0, newest or 0
