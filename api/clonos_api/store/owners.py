"""The subjects that own jobs: their numbers, and whose folders a job may open.

An agent that runs each owner's drivers as a user of their own derives the user from the number. So an owner has the
same user on every host, which shared folders need.
"""

from __future__ import annotations

from sqlalchemy import func, or_, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.store.tables import JobRow, OwnerRow, SavepointRow


async def number(session: AsyncSession, subject: str) -> int:
    """Return the number of a subject, from 1; it gets one with its first job.

    The numbers have no gaps, not even after failed transactions: agents have a user for a limited range of them.
    """
    query = select(OwnerRow.number).where(OwnerRow.subject == subject)
    existing = (await session.scalars(query)).one_or_none()
    if existing is not None:
        return existing
    if session.get_bind().dialect.name == "postgresql":  # SQLite has one writer
        await session.execute(text(f"LOCK TABLE {OwnerRow.__tablename__} IN SHARE ROW EXCLUSIVE MODE"))
        existing = (await session.scalars(query)).one_or_none()
        if existing is not None:
            return existing
    newest = (await session.scalars(select(func.max(OwnerRow.number)))).one() or 0
    session.add(OwnerRow(number=newest + 1, subject=subject))
    await session.flush()
    return newest + 1


async def number_of_job(session: AsyncSession, job: str) -> int:
    """Return the number of the owner of a job (id)."""
    return (await session.scalars(select(JobRow.owner_number).where(JobRow.id == job))).one()


async def of_folders(session: AsyncSession, job: JobRow, savepoint: str | None = None) -> list[str]:
    """Further subjects whose checkpoints and savepoints a job may open.

    They are the owners of earlier jobs of the name, which an admin has taken over, and the owner of `savepoint`, from
    which the job starts.
    """
    which = [JobRow.name == job.name]
    if savepoint is not None:
        which.append(JobRow.id.in_(select(SavepointRow.job).where(SavepointRow.id == savepoint)))
    query = select(JobRow.created_by).where(or_(*which), JobRow.created_by != job.created_by)
    return list(await session.scalars(query.distinct().order_by(JobRow.created_by)))
