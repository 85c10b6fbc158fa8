"""Rows of generations: claims of a job's causal log, as its drivers reported them. Event: ``job.generation``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import ColumnElement, func, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.store import events
from clonos_api.store.db.bulk import update_all
from clonos_api.store.db.paging import FIRST, GENERATION_CURSOR, Page, Window, check_cursor, cut
from clonos_api.store.db.rows import insert_new
from clonos_api.store.ingest import Claimed
from clonos_api.store.tables import GenerationRow


async def record_claim(
    session: AsyncSession, job: str, run: str, claim: Claimed, *, host: str, attempt: int, cause: str
) -> None:
    """Record a driver's claim as a new generation, which ends the job's older generations.

    `host` is the name of the driver's host. `attempt` and `cause` replace those of `claim`, which are derived from the
    events of one run only.
    """
    newer = select(func.min(GenerationRow.claimed_at)).where(
        GenerationRow.job == job, GenerationRow.generation > claim.generation
    )
    row = await insert_new(
        session,
        GenerationRow,
        job=job,
        lineage=claim.lineage,
        generation=claim.generation,
        claim_id=claim.claim_id,
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
    data = {"generation": claim.generation, "lineage": claim.lineage, "run": run, "host": host, "cause": cause}
    events.append(session, "job.generation", job=job, data=data)


async def close(session: AsyncSession, job: str, generation: int, at: datetime) -> None:
    """Record `at` as the end of a generation."""
    await _close(session, GenerationRow.job == job, GenerationRow.generation == generation, at=at)


async def _close(session: AsyncSession, *which: ColumnElement[bool], at: datetime) -> None:
    statement = update(GenerationRow).where(*which, GenerationRow.ended_at.is_(None)).values(ended_at=at)
    await session.execute(statement.execution_options(synchronize_session=False))


async def count_epochs(session: AsyncSession, sums: Mapping[tuple[str, int, int], tuple[int, int]]) -> None:
    """Add finished epochs and published records to generations: (job, lineage, generation) → (epochs, records)."""
    rows = [
        {"job": job, "lineage": lineage, "generation": generation, "epochs": epochs, "records": records}
        for (job, lineage, generation), (epochs, records) in sums.items()
    ]
    await update_all(session, GenerationRow, rows, keys=("job", "lineage", "generation"), add=("epochs", "records"))


async def newest(session: AsyncSession, job: str) -> GenerationRow | None:
    """Return the row of a job's newest generation; None before the first claim."""
    order = (GenerationRow.lineage.desc(), GenerationRow.generation.desc())
    return (
        await session.scalars(select(GenerationRow).where(GenerationRow.job == job).order_by(*order).limit(1))
    ).first()


async def claimed_by(session: AsyncSession, job: str, run: str, attempt: int) -> bool:
    """Whether this attempt of a run, or a later attempt, has claimed the job's causal log."""
    query = select(GenerationRow.generation).where(
        GenerationRow.job == job, GenerationRow.run == run, GenerationRow.attempt >= attempt
    )
    return (await session.execute(query.limit(1))).first() is not None


async def page(session: AsyncSession, job: str, window: Window = FIRST) -> Page[GenerationRow]:
    """One page of a job's generations, newest first."""
    query = select(GenerationRow).where(GenerationRow.job == job)
    position = (GenerationRow.lineage, GenerationRow.generation)
    if window.starting_after is not None:
        check_cursor(window.starting_after, GENERATION_CURSOR)
        lineage, _, generation = window.starting_after.partition(".")
        query = query.where(tuple_(*position) < tuple_(int(lineage), int(generation)))
    query = query.order_by(*(column.desc() for column in position)).limit(window.limit + 1)
    return cut(list(await session.scalars(query)), window, lambda row: f"{row.lineage}.{row.generation}")
