"""Savepoints; they outlive their jobs.

``IN_PROGRESS`` and ``DELETING`` last as long as an operation, or the job's stop, that waits for it; whatever becomes
of that, `clonos_api.reconcile.tidying` sees to it that they end.

Events: ``savepoint.created``, ``savepoint.completed``, ``.failed``, ``.deleting``, ``.deleted``.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import NameTaken, StateConflict
from clonos.resources.jobs import Failure
from clonos_api.store import audit, events
from clonos_api.store.clock import now
from clonos_api.store.paging import DEFAULT, Page, by_time
from clonos_api.store.rows import found, insert_new, new_id
from clonos_api.store.swap import swap
from clonos_api.store.tables import JobRow, SavepointRow


async def create(session: AsyncSession, job: JobRow, *, name: str, location: str) -> SavepointRow:
    """A savepoint that is being taken, in a folder of its own below `location`.

    Raises:
        NameTaken: The job has one of this name.
    """
    made = new_id()
    row = await insert_new(
        session,
        SavepointRow,
        id=made,
        job=job.id,
        job_name=job.name,
        name=name,
        state="IN_PROGRESS",
        location=f"{location.rstrip('/')}/{job.name}/{made}",
        epochs={},
        version=job.observed_version or job.version,
        artifact=job.artifact,
        created_at=await now(session),
    )
    if row is None:
        raise NameTaken(f"Job {job.name} has a savepoint {name!r} already.")
    _tell(session, row, "created")
    await audit.asked(session, "savepoint.create", row.id, job=job.id, name=name)
    return row


async def complete(
    session: AsyncSession, savepoint: SavepointRow, *, epochs: Mapping[str, int], size_bytes: int | None
) -> SavepointRow:
    """It is there, whole.

    Raises:
        Fenced: Somebody changed it since.
    """
    done = {"state": "COMPLETED", "epochs": dict(epochs), "size_bytes": size_bytes, "completed_at": await now(session)}
    row = await swap(session, savepoint, SavepointRow.state == "IN_PROGRESS", **done)
    _tell(session, row, "completed")
    return row


async def fail(session: AsyncSession, savepoint: SavepointRow, failure: Failure) -> SavepointRow:
    """It could not be taken, or not be deleted: nothing starts from it, and it can be deleted (again).

    Raises:
        Fenced: Somebody changed it since.
    """
    row = await swap(session, savepoint, state="FAILED", failure=failure.model_dump(mode="json"))
    _tell(session, row, "failed")
    return row


async def begin_delete(session: AsyncSession, savepoint: SavepointRow) -> SavepointRow:
    """It is going to be deleted, and nothing starts from it any more.

    Raises:
        StateConflict: It is being taken, or deleted already.
        Fenced: Somebody changed it since.
    """
    if savepoint.state == "IN_PROGRESS":
        raise StateConflict(f"Savepoint {savepoint.name} is being taken.", hint="wait until it is there.")
    if savepoint.state == "DELETING":
        raise StateConflict(f"Savepoint {savepoint.name} is being deleted.", hint="wait until it is gone, or FAILED.")
    row = await swap(session, savepoint, state="DELETING", failure=None)
    _tell(session, row, "deleting")
    await audit.asked(session, "savepoint.delete", row.id, job=row.job, name=row.name)
    return row


async def remove(session: AsyncSession, savepoint: SavepointRow) -> None:
    """Its files are gone.

    Raises:
        Fenced: Somebody changed it since.
    """
    row = await swap(session, savepoint, SavepointRow.state == "DELETING")
    await session.execute(delete(SavepointRow).where(SavepointRow.id == row.id))
    _tell(session, row, "deleted")


async def get(session: AsyncSession, savepoint: str) -> SavepointRow:
    """A savepoint.

    Raises:
        NotFound: There is none.
    """
    return found(await session.get(SavepointRow, savepoint, populate_existing=True), f"savepoint {savepoint}")


async def page(
    session: AsyncSession, *, job: str | None = None, limit: int = DEFAULT, starting_after: str | None = None
) -> Page[SavepointRow]:
    """Savepoints, of all jobs or of one, newest first."""
    query = select(SavepointRow)
    if job is not None:
        query = query.where(SavepointRow.job == job)
    return await by_time(
        session, query, SavepointRow.created_at, SavepointRow.id, limit=limit, starting_after=starting_after
    )


def _tell(session: AsyncSession, row: SavepointRow, what: str) -> None:
    data = {"savepoint": row.id, "name": row.name}
    events.append(session, f"savepoint.{what}", job=row.job, data=data)
