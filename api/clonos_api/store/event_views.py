"""Converts rows of events to resources, with a sentence that names their jobs and hosts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.event_types import sentence_of
from clonos.resources.service import Event
from clonos_api.store import views
from clonos_api.store.tables import EventRow, HostRow, JobRow

_CAPACITY: Final = 10_000


class EventViews:
    """Converts rows of events; keeps the names of their jobs and hosts, which never change."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    async def of(self, session: AsyncSession, rows: Sequence[EventRow]) -> list[Event]:
        """Return the events of `rows`, in their order. The sentence of a job whose row was removed has its id."""
        if len(self._names) > _CAPACITY:
            self._names.clear()
        for table, ids in ((JobRow, {row.job for row in rows}), (HostRow, {row.host for row in rows})):
            await self._read(session, table, [id for id in ids if id is not None and id not in self._names])
        return [self._event(row) for row in rows]

    async def _read(self, session: AsyncSession, table: type[JobRow | HostRow], ids: Collection[str]) -> None:
        if ids:
            names = await session.execute(select(table.id, table.name).where(table.id.in_(ids)))
            self._names.update((row.id, row.name) for row in names)

    def _event(self, row: EventRow) -> Event:
        job, host = (self._names.get(id, id) if id is not None else "" for id in (row.job, row.host))
        return views.resource(Event, row, text=sentence_of(row.type, row.data, job=job, host=host))
