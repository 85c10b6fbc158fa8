"""Rows of the errors that a job's drivers reported. Event: ``job.exception``."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.store import events
from clonos_api.store.db.paging import FIRST, Page, Window, by_number
from clonos_api.store.ingest import ErrorReported
from clonos_api.store.tables import ExceptionRow


async def add(session: AsyncSession, job: str, report: ErrorReported) -> None:
    """Record an error that a driver reported."""
    session.add(ExceptionRow(job=job, at=report.at, generation=report.generation, failure=report.failure))
    data = {"generation": report.generation, "error": report.failure.error, "what": report.failure.what}
    events.append(session, "job.exception", job=job, data=data)


async def page(session: AsyncSession, job: str, window: Window = FIRST) -> Page[ExceptionRow]:
    """One page of a job's errors, newest first."""
    query = select(ExceptionRow).where(ExceptionRow.job == job)
    return await by_number(session, query, ExceptionRow.seq, window)
