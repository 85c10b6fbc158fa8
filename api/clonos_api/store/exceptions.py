"""Exceptions: the errors that a job's drivers told, newest first. Event: ``job.exception``."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.store import events
from clonos_api.store.ingest import Troubled
from clonos_api.store.paging import DEFAULT, Page, by_number
from clonos_api.store.tables import ExceptionRow


async def told(session: AsyncSession, job: str, trouble: Troubled) -> None:
    """A driver told an error."""
    failure = trouble.failure.model_dump(mode="json")
    session.add(ExceptionRow(job=job, at=trouble.at, generation=trouble.generation, failure=failure))
    data = {"generation": trouble.generation, "error": trouble.failure.error, "what": trouble.failure.what}
    events.append(session, "job.exception", job=job, data=data)


async def page(
    session: AsyncSession, job: str, *, limit: int = DEFAULT, starting_after: str | None = None
) -> Page[ExceptionRow]:
    """A job's errors, newest first."""
    query = select(ExceptionRow).where(ExceptionRow.job == job)
    return await by_number(session, query, ExceptionRow.seq, limit=limit, starting_after=starting_after)
