"""Events: what happened, numbered in the order in which it was committed.

Numbers come from a sequence, which gives them out before the commit: of two transactions the one with the smaller
number may commit last, and a reader that has seen the larger one would never look back. So who appends takes one lock
right before the insert, at the end of the transaction, and holds it through the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import func, insert, or_, select, text
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
    since: datetime | None = None,
    limit: int = 500,
    newest: bool = False,
) -> list[EventRow]:
    """Events after number `seq`, oldest first.

    Args:
        session: A transaction.
        seq: A number.
        job: Of this job only.
        types: Whole types (``job.state``) or their first parts (``job``); any of these.
        since: That happened then or later.
        limit: So many at the most.
        newest: Of more than `limit` the newest ones.
    """
    query = select(EventRow).where(EventRow.seq > seq).limit(limit)
    if job is not None:
        query = query.where(EventRow.job == job)
    if types:
        parts = [EventRow.type.startswith(f"{one}.", autoescape=True) for one in types]
        query = query.where(or_(EventRow.type.in_(types), *parts))
    if since is not None:
        query = query.where(EventRow.at >= since)
    rows = list(await session.scalars(query.order_by(EventRow.seq.desc() if newest else EventRow.seq)))
    return rows[::-1] if newest else rows


async def bounds(session: AsyncSession) -> tuple[int, int]:
    """The oldest number that is still there and the newest; (0, 0) without any."""
    oldest, newest = (await session.execute(select(func.min(EventRow.seq), func.max(EventRow.seq)))).one()
    return oldest or 0, newest or 0
