"""Planned moves: a prepared standby replaces a job's running driver.

A job has at most one (`JobRow.moving`); the reconciler advances it (`clonos_api.reconcile.states.moving`). Events:
``job.move.began``, ``job.move.ended``.
"""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.jobs import Failure
from clonos_api.store import audit, events, jobs, operations
from clonos_api.store.columns import Moving
from clonos_api.store.tables import JobRow, OperationRow


async def begin(session: AsyncSession, job: JobRow, moving: Moving) -> JobRow:
    """Begin a planned move of a job. It replaces an earlier move, whose standby the caller checked is not promoted."""
    row = await jobs.change(session, job, moving=moving)
    data = {"cause": moving.cause, "operation": moving.operation, "to": moving.to}
    events.append(session, "job.move.began", job=row.id, data=data)
    await audit.asked(session, f"job.{moving.cause}", row.id, to=moving.to, version=moving.version)
    return row


async def end(session: AsyncSession, job: JobRow, moving: Moving, failure: Failure | None) -> None:
    """Record the end of a planned move that was removed from `job`: end its operation, and append the event."""
    data = {"cause": moving.cause, "failure": failure}
    events.append(session, "job.move.ended", job=job.id, data=data)
    if moving.operation is None:
        return
    operation = await session.get(OperationRow, moving.operation, populate_existing=True)
    if operation is None or operation.state != "IN_PROGRESS":
        return
    if failure is not None:
        await operations.fail(session, operation, failure)
    else:
        result = {"run": job.run, "generation": job.generation, "version": job.version}
        await operations.complete(session, operation, result)
