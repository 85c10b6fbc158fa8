"""Numbers of the subjects that own jobs.

An agent that runs each owner's drivers as a user of their own derives the user from the number. So an owner has the
same user on every host, which shared folders need.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.store.db.rows import insert_new
from clonos_api.store.tables import JobRow, OwnerRow


async def number(session: AsyncSession, subject: str) -> int:
    """The number of a subject, from 1; it gets one with its first job."""
    query = select(OwnerRow.number).where(OwnerRow.subject == subject)
    existing = (await session.scalars(query)).one_or_none()
    if existing is not None:
        return existing
    await insert_new(session, OwnerRow, subject=subject)  # waits for a transaction that inserts the same subject
    return (await session.scalars(query)).one()


async def number_of_job(session: AsyncSession, job: str) -> int:
    """The number of the owner of a job (id)."""
    return (await session.scalars(select(JobRow.owner_number).where(JobRow.id == job))).one()
