"""Standbys: warm drivers. Records now; who makes them comes later."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.store.paging import DEFAULT, Page, by_time
from clonos_api.store.tables import StandbyRow


async def page(
    session: AsyncSession, *, job: str | None = None, limit: int = DEFAULT, starting_after: str | None = None
) -> Page[StandbyRow]:
    """Standbys, of all jobs or of one, newest first."""
    query = select(StandbyRow)
    if job is not None:
        query = query.where(StandbyRow.job == job)
    return await by_time(session, query, StandbyRow.since, StandbyRow.id, limit=limit, starting_after=starting_after)
