"""Counters of jobs, such as finished epochs: sums that remain after retention has removed the counted rows."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.store.db.bulk import insert_all
from clonos_api.store.db.rows import upsert
from clonos_api.store.tables import CounterRow


async def add(session: AsyncSession, sums: Mapping[str, Mapping[str, int]]) -> None:
    """Increment counters: job id → name of the counter → increment."""
    rows = [
        {"job": job, "name": name, "value": value}
        for job, counters in sorted(sums.items())
        for name, value in sorted(counters.items())
        if value
    ]
    await insert_all(session, CounterRow, rows, keys=("job", "name"), add=("value",))


async def reach(session: AsyncSession, job: str, name: str, value: int) -> None:
    """Raise a counter of a job to `value`, unless it is larger."""
    statement = upsert(session.get_bind().dialect.name, CounterRow).values(job=job, name=name, value=value)
    largest = func.greatest if session.get_bind().dialect.name == "postgresql" else func.max
    highest = largest(CounterRow.value, statement.excluded.value)
    await session.execute(statement.on_conflict_do_update(index_elements=["job", "name"], set_={"value": highest}))


async def of_job(session: AsyncSession, job: str) -> dict[str, int]:
    """All counters of a job: name → value."""
    query = select(CounterRow.name, CounterRow.value).where(CounterRow.job == job)
    return dict((await session.execute(query)).all())
