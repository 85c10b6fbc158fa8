"""Sums that outlive what they count."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.store.bulk import insert_all
from clonos_api.store.rows import upsert
from clonos_api.store.tables import CounterRow


async def add(session: AsyncSession, sums: Mapping[str, Mapping[str, int]]) -> None:
    """Add to the counters of jobs."""
    rows = [
        {"job": job, "name": name, "value": value}
        for job, of_job in sorted(sums.items())
        for name, value in sorted(of_job.items())
        if value
    ]
    await insert_all(session, CounterRow, rows, keys=("job", "name"), add=("value",))


async def reach(session: AsyncSession, job: str, name: str, value: int) -> None:
    """Have a counter be at least `value`."""
    statement = upsert(session, CounterRow).values(job=job, name=name, value=value)
    largest = func.greatest if session.get_bind().dialect.name == "postgresql" else func.max
    highest = largest(CounterRow.value, statement.excluded.value)
    await session.execute(statement.on_conflict_do_update(index_elements=["job", "name"], set_={"value": highest}))


async def of_job(session: AsyncSession, job: str) -> dict[str, int]:
    """A job's counters."""
    query = select(CounterRow.name, CounterRow.value).where(CounterRow.job == job)
    return dict((await session.execute(query)).all())
