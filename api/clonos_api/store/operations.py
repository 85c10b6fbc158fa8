"""Operations: what takes a while. Each ends exactly once, at its deadline at the latest.

Events: ``operation.began``, ``operation.ended``.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import Fenced
from clonos.resources.jobs import Failure
from clonos_api.store import audit, events
from clonos_api.store.clock import clock, now
from clonos_api.store.paging import DEFAULT, Page, by_time
from clonos_api.store.rows import found, insert_new, new_id
from clonos_api.store.swap import swap
from clonos_api.store.tables import OperationRow


async def begin(
    session: AsyncSession,
    kind: str,
    *,
    job: str | None = None,
    arguments: dict[str, Any] | None = None,
    timeout_s: float,
    by: str,
) -> OperationRow:
    """Begin an operation.

    Args:
        session: A transaction.
        kind: ``start``, ``stop``, … (`clonos.resources.service.Operation`).
        job: Id of its job.
        arguments: What it needs to go on.
        timeout_s: When it is given up.
        by: The subject who asked.
    """
    row = await insert_new(
        session,
        OperationRow,
        id=new_id(),
        kind=kind,
        job=job,
        state="IN_PROGRESS",
        arguments=arguments or {},
        result={},
        created_by=by,
        created_at=clock(),
        deadline=clock(timeout_s),
    )
    if row is None:
        raise Fenced("Two operations got the same id.")
    events.append(session, "operation.began", job=job, data={"operation": row.id, "kind": kind})
    await audit.asked(session, f"operation.{kind}", row.id, job=job)
    return row


async def complete(
    session: AsyncSession, operation: OperationRow, result: dict[str, Any] | None = None
) -> OperationRow:
    """It succeeded.

    Raises:
        Fenced: It has ended already.
    """
    return await _end(session, operation, state="COMPLETED", result=result or {})


async def fail(session: AsyncSession, operation: OperationRow, failure: Failure) -> OperationRow:
    """It failed.

    Raises:
        Fenced: It has ended already.
    """
    return await _end(session, operation, state="FAILED", failure=failure.model_dump(mode="json"))


async def expire(session: AsyncSession) -> list[OperationRow]:
    """Give up operations whose deadline is over by the database's clock; these operations."""
    query = (
        select(OperationRow)
        .where(OperationRow.state == "IN_PROGRESS", OperationRow.deadline < clock())
        .order_by(OperationRow.id)
        .with_for_update(skip_locked=True)  # who holds one is just ending it
        .execution_options(populate_existing=True)
    )
    rows = (await session.scalars(query)).all()
    moment = await now(session)
    given_up = []
    for row in rows:
        failure = Failure(
            error="operation-timed-out",
            what=f"The operation {row.kind} was not done by its deadline.",
            hint="look at the job's state and failure, then ask again.",
            domain="environment",
            retry=True,
            at=moment,
        )
        given_up.append(await fail(session, row, failure))
    return given_up


async def get(session: AsyncSession, operation: str) -> OperationRow:
    """An operation.

    Raises:
        NotFound: There is none.
    """
    return found(await session.get(OperationRow, operation, populate_existing=True), f"operation {operation}")


async def page(
    session: AsyncSession,
    *,
    job: str | None = None,
    state: str | None = None,
    limit: int = DEFAULT,
    starting_after: str | None = None,
) -> Page[OperationRow]:
    """Operations, newest first."""
    query = select(OperationRow)
    if job is not None:
        query = query.where(OperationRow.job == job)
    if state is not None:
        query = query.where(OperationRow.state == state)
    return await by_time(
        session, query, OperationRow.created_at, OperationRow.id, limit=limit, starting_after=starting_after
    )


async def in_progress(session: AsyncSession, *, job: str | None = None) -> list[OperationRow]:
    """Operations that have not ended, of all jobs or of one, oldest first."""
    query = select(OperationRow).where(OperationRow.state == "IN_PROGRESS").order_by(OperationRow.id)
    if job is not None:
        query = query.where(OperationRow.job == job)
    return list(await session.scalars(query.execution_options(populate_existing=True)))


async def _end(session: AsyncSession, operation: OperationRow, **columns: Any) -> OperationRow:
    row = await swap(session, operation, OperationRow.state == "IN_PROGRESS", ended_at=clock(), **columns)
    data = {"operation": row.id, "kind": row.kind, "state": row.state, "failure": row.failure}
    events.append(session, "operation.ended", job=row.job, data=data)
    return row
