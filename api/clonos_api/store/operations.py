"""Rows of operations: long-running requests. Each ends exactly once, at its deadline at the latest.

Events: ``operation.began``, ``operation.ended``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import OperationTimedOut
from clonos.resources.failures import new_failure
from clonos.resources.jobs import Failure
from clonos_api.store import audit, events
from clonos_api.store.columns import OperationArguments
from clonos_api.store.db.clock import clock, now
from clonos_api.store.db.paging import FIRST, Page, Window, by_time
from clonos_api.store.db.rows import new_id, require_row
from clonos_api.store.db.swap import swap
from clonos_api.store.tables import JobRow, OperationRow

_IN_PROGRESS: Final = (
    select(OperationRow)
    .where(OperationRow.state == "IN_PROGRESS")
    .order_by(OperationRow.id)
    .execution_options(populate_existing=True)
)


async def begin(
    session: AsyncSession,
    kind: str,
    *,
    job: str | None = None,
    arguments: OperationArguments | None = None,
    timeout_s: float,
    by: str,
) -> OperationRow:
    """Insert an operation in progress, requested by the subject `by`; its deadline is in `timeout_s` seconds.

    `arguments` are the data of the request that the reconciler needs to complete the operation.
    """
    moment = await now(session)
    row = OperationRow(
        id=new_id(),
        kind=kind,
        job=job,
        state="IN_PROGRESS",
        arguments=arguments or OperationArguments(),
        result={},
        created_by=by,
        created_at=moment,
        deadline=moment + timedelta(seconds=timeout_s),
    )
    session.add(row)
    await session.flush()
    events.append(session, "operation.began", job=job, data={"operation": row.id, "kind": kind})
    await audit.asked(session, f"operation.{kind}", row.id, job=job)
    return row


async def complete(
    session: AsyncSession, operation: OperationRow, result: dict[str, Any] | None = None
) -> OperationRow:
    """End an operation in progress as COMPLETED."""
    return await _end(session, operation, state="COMPLETED", result=result or {})


async def fail(session: AsyncSession, operation: OperationRow, failure: Failure) -> OperationRow:
    """End an operation in progress as FAILED."""
    return await _end(session, operation, state="FAILED", failure=failure)


async def expire(session: AsyncSession) -> list[OperationRow]:
    """Fail operations whose deadline has passed, and return them."""
    query = (
        select(OperationRow)
        .where(OperationRow.state == "IN_PROGRESS", OperationRow.deadline < clock())
        .order_by(OperationRow.id)
        .with_for_update(skip_locked=True)  # a locked operation is being ended
        .execution_options(populate_existing=True)
    )
    rows = (await session.scalars(query)).all()
    moment = await now(session)
    expired = []
    for row in rows:
        job = await session.get(JobRow, row.job) if row.job is not None else None
        cause = f" The job's last error: {job.failure.what}" if job is not None and job.failure else ""
        what = f"The operation {row.kind} was not complete at its deadline.{cause}"
        late = new_failure(OperationTimedOut, what, at=moment)
        expired.append(await fail(session, row, late))
    return expired


async def get(session: AsyncSession, operation: str) -> OperationRow:
    """Return the row of an operation, by its id."""
    return require_row(await session.get(OperationRow, operation, populate_existing=True), f"operation {operation}")


async def page(
    session: AsyncSession,
    window: Window = FIRST,
    *,
    job: str | None = None,
    state: str | None = None,
) -> Page[OperationRow]:
    """One page of operations, newest first: of all jobs or of one `job`, in all states or in one `state`."""
    query = select(OperationRow)
    if job is not None:
        query = query.where(OperationRow.job == job)
    if state is not None:
        query = query.where(OperationRow.state == state)
    return await by_time(session, query, OperationRow.created_at, OperationRow.id, window)


async def in_progress(session: AsyncSession, *, job: str | None = None) -> list[OperationRow]:
    """Operations that have not ended, of all jobs or of one, oldest first."""
    query = _IN_PROGRESS if job is None else _IN_PROGRESS.where(OperationRow.job == job)
    return list(await session.scalars(query))


async def _end(session: AsyncSession, operation: OperationRow, **columns: Any) -> OperationRow:
    """End an operation, as completed or failed."""
    row = await swap(session, operation, OperationRow.state == "IN_PROGRESS", ended_at=clock(), **columns)
    data = {"operation": row.id, "kind": row.kind, "state": row.state, "failure": row.failure}
    events.append(session, "operation.ended", job=row.job, data=data)
    return row
