"""Rows of savepoints: named copies of checkpoints, which outlive their jobs.

States: IN_PROGRESS -> COMPLETED or FAILED; COMPLETED or FAILED -> DELETING -> removed, or FAILED. An operation or the
stop of the job waits during IN_PROGRESS and DELETING; `clonos_api.reconcile.tidying` ends both states if that waiter
has ended.

Events: ``savepoint.created``, ``savepoint.completed``, ``.failed``, ``.deleting``, ``.deleted``.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import NameTaken, StateConflict
from clonos.resources.event_types import EventType
from clonos.resources.jobs import Failure
from clonos_api.store import audit, events
from clonos_api.store.db.clock import now
from clonos_api.store.db.paging import FIRST, Page, Window, by_time
from clonos_api.store.db.rows import insert_new, new_id, require_row
from clonos_api.store.db.swap import swap
from clonos_api.store.tables import JobRow, SavepointRow


async def create(session: AsyncSession, job: JobRow, *, name: str, location: str) -> SavepointRow:
    """Insert a savepoint in progress, with its own directory below `location`."""
    id = new_id()
    row = await insert_new(
        session,
        SavepointRow,
        id=id,
        job=job.id,
        job_name=job.name,
        name=name,
        state="IN_PROGRESS",
        location=f"{location.rstrip('/')}/{job.name}/{id}",
        epochs={},
        version=job.observed_version or job.version,
        artifact=job.artifact,
        created_at=await now(session),
    )
    if row is None:
        raise NameTaken(f"Job {job.name} already has a savepoint {name!r}.")
    _append_event(session, row, "savepoint.created")
    await audit.asked(session, "savepoint.create", row.id, job=job.id, name=name)
    return row


async def complete(
    session: AsyncSession, savepoint: SavepointRow, *, epochs: Mapping[str, int], size_bytes: int | None
) -> SavepointRow:
    """Mark a savepoint as completely written, with its `epochs` (query → newest finished epoch) and its size."""
    done = {"state": "COMPLETED", "epochs": dict(epochs), "size_bytes": size_bytes, "completed_at": await now(session)}
    row = await swap(session, savepoint, SavepointRow.state == "IN_PROGRESS", **done)
    _append_event(session, row, "savepoint.completed")
    return row


async def fail(session: AsyncSession, savepoint: SavepointRow, failure: Failure) -> SavepointRow:
    """Mark the creation or deletion of a savepoint as failed. Jobs cannot start from it; it can be deleted (again)."""
    row = await swap(session, savepoint, state="FAILED", failure=failure)
    _append_event(session, row, "savepoint.failed")
    return row


async def begin_delete(session: AsyncSession, savepoint: SavepointRow) -> SavepointRow:
    """Mark a savepoint for deletion. Jobs can no longer start from it."""
    if savepoint.state == "IN_PROGRESS":
        raise StateConflict(f"Savepoint {savepoint.name} is being created.", hint="wait until it is COMPLETED.")
    if savepoint.state == "DELETING":
        raise StateConflict(f"Savepoint {savepoint.name} is being deleted.", hint="wait until it is removed or FAILED.")
    row = await swap(session, savepoint, state="DELETING", failure=None)
    _append_event(session, row, "savepoint.deleting")
    await audit.asked(session, "savepoint.delete", row.id, job=row.job, name=row.name)
    return row


async def remove(session: AsyncSession, savepoint: SavepointRow) -> None:
    """Remove the row of a savepoint after its files were deleted."""
    row = await swap(session, savepoint, SavepointRow.state == "DELETING")
    await session.execute(delete(SavepointRow).where(SavepointRow.id == row.id))
    _append_event(session, row, "savepoint.deleted")


async def get(session: AsyncSession, savepoint: str) -> SavepointRow:
    """Return the row of a savepoint, by its id."""
    return require_row(await session.get(SavepointRow, savepoint, populate_existing=True), f"savepoint {savepoint}")


async def page(session: AsyncSession, window: Window = FIRST, *, job: str | None = None) -> Page[SavepointRow]:
    """One page of the savepoints of one job or of all jobs, newest first."""
    query = select(SavepointRow)
    if job is not None:
        query = query.where(SavepointRow.job == job)
    return await by_time(session, query, SavepointRow.created_at, SavepointRow.id, window)


def _append_event(session: AsyncSession, row: SavepointRow, kind: EventType) -> None:
    """Append an event about a savepoint."""
    data = {"savepoint": row.id, "name": row.name}
    events.append(session, kind, job=row.job, data=data)
