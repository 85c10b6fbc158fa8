"""Generations: claims of a job's causal log, as its drivers told them. Event: ``job.generation``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import ColumnElement, func, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.store import events
from clonos_api.store.bulk import update_all
from clonos_api.store.ingest import Claimed
from clonos_api.store.paging import DEFAULT, Page, wrong
from clonos_api.store.rows import insert_new
from clonos_api.store.tables import GenerationRow


async def claimed(session: AsyncSession, job: str, run: str, claim: Claimed, attempt: int, cause: str) -> None:
    """A driver claimed: older generations are over."""
    newer = select(func.min(GenerationRow.claimed_at)).where(
        GenerationRow.job == job, GenerationRow.generation > claim.generation
    )
    row = await insert_new(
        session,
        GenerationRow,
        job=job,
        lineage=claim.lineage,
        generation=claim.generation,
        driver=claim.driver,
        run=run,
        attempt=attempt,
        cause=cause,
        claimed_at=claim.at,
        ended_at=(await session.execute(newer)).scalar(),
    )
    if row is None:
        return
    older = GenerationRow.generation < claim.generation
    await _close(session, GenerationRow.job == job, older, at=claim.at)
    data = {"generation": claim.generation, "lineage": claim.lineage, "run": run, "cause": cause}
    events.append(session, "job.generation", job=job, data=data)


async def ended(session: AsyncSession, job: str, generation: int, at: datetime) -> None:
    """A generation is over."""
    await _close(session, GenerationRow.job == job, GenerationRow.generation == generation, at=at)


async def _close(session: AsyncSession, *which: ColumnElement[bool], at: datetime) -> None:
    statement = update(GenerationRow).where(*which, GenerationRow.ended_at.is_(None)).values(ended_at=at)
    await session.execute(statement.execution_options(synchronize_session=False))


async def counted(session: AsyncSession, sums: Mapping[tuple[str, int, int], tuple[int, int]]) -> None:
    """Generations, by job, lineage and number, finished so many more epochs with so many records."""
    rows = [
        {"job": job, "lineage": lineage, "generation": generation, "epochs": epochs, "records": records}
        for (job, lineage, generation), (epochs, records) in sums.items()
    ]
    await update_all(session, GenerationRow, rows, keys=("job", "lineage", "generation"), add=("epochs", "records"))


async def newest(session: AsyncSession, job: str) -> GenerationRow | None:
    """A job's newest generation."""
    order = (GenerationRow.lineage.desc(), GenerationRow.generation.desc())
    return (
        await session.scalars(select(GenerationRow).where(GenerationRow.job == job).order_by(*order).limit(1))
    ).first()


async def claimed_by(session: AsyncSession, job: str, run: str, attempt: int) -> bool:
    """Whether this attempt of a run has claimed, or one after it."""
    query = select(GenerationRow.generation).where(
        GenerationRow.job == job, GenerationRow.run == run, GenerationRow.attempt >= attempt
    )
    return (await session.execute(query.limit(1))).first() is not None


async def page(
    session: AsyncSession, job: str, *, limit: int = DEFAULT, starting_after: str | None = None
) -> Page[GenerationRow]:
    """A job's generations, newest first."""
    query = select(GenerationRow).where(GenerationRow.job == job)
    place = (GenerationRow.lineage, GenerationRow.generation)
    if starting_after is not None:
        lineage, _, generation = starting_after.partition(".")
        if not (lineage.isdecimal() and generation.isdecimal() and len(starting_after) < 19):
            raise wrong(starting_after)
        query = query.where(tuple_(*place) < tuple_(int(lineage), int(generation)))
    query = query.order_by(*(column.desc() for column in place)).limit(limit + 1)
    rows = list(await session.scalars(query))
    more = len(rows) > limit
    return Page(rows[:limit], f"{rows[limit - 1].lineage}.{rows[limit - 1].generation}" if more else None)
