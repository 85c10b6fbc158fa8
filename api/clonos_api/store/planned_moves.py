"""Planned moves: a prepared standby replaces a job's running driver.

A job has at most one (`JobRow.moving`); the reconciler advances it (`clonos_api.reconcile.states.moving`). Events:
``job.move.began``, ``job.move.ended``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.jobs import Failure
from clonos_api.store import audit, events, jobs, operations
from clonos_api.store.tables import JobRow, OperationRow


class Moving(BaseModel):
    """A planned move in progress."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # a request for another host, a drained host, or a new version of the job
    cause: Literal["move", "drain", "upgrade"]
    operation: str | None = None  # id of the operation that waits for the move
    leaves: str  # id of the current driver's host
    to: str | None = None  # id of the target host; None for any other host
    version: int  # version of the new driver's specification
    previous: int  # version of the current driver's specification
    kept: int = 0  # minimum number of standbys of the previous version that remain, for a rollback
    until: datetime  # deadline for a READY standby
    standby: str | None = None  # id of the standby that will take over
    failed: int = 0  # number of standbys that ended before they could take over
    handed_at: datetime | None = None  # when the standby was promoted, or for an upgrade the driver was stopped
    taken_at: datetime | None = None  # when the standby became the job's driver
    failure: Failure | None = None  # why the new version failed; the job is being rolled back


def of(job: JobRow) -> Moving | None:
    """The planned move in progress of a job; None if there is none."""
    return Moving.model_validate(job.moving) if job.moving else None


async def begin(session: AsyncSession, job: JobRow, moving: Moving) -> JobRow:
    """Begin a planned move of a job. It replaces an earlier move, whose standby the caller checked is not promoted."""
    row = await jobs.change(session, job, moving=moving.model_dump(mode="json"))
    data = {"cause": moving.cause, "operation": moving.operation, "to": moving.to}
    events.append(session, "job.move.began", job=row.id, data=data)
    await audit.asked(session, f"job.{moving.cause}", row.id, to=moving.to, version=moving.version)
    return row


async def end(session: AsyncSession, job: JobRow, moving: Moving, failure: Failure | None) -> None:
    """Record the end of a planned move that was removed from `job`: end its operation, and append the event."""
    data = {"cause": moving.cause, "failure": failure.model_dump(mode="json") if failure else None}
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
