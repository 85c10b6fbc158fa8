"""Planned moves: a job's driver gives way to a standby that was made ready first.

A job has one at the most (`JobRow.moving`); the reconciler brings it on (`clonos_api.reconcile.states.moving`). Events:
``job.move.began``, ``job.move.ended``.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.jobs import Failure
from clonos_api.store import audit, events, jobs, operations
from clonos_api.store.clock import now
from clonos_api.store.tables import JobRow, OperationRow


class Moving(BaseModel):
    """A planned move under way.

    Attributes:
        cause: Somebody asked for another host, the host is drained, or the job is to have another version.
        operation: Waits for it.
        leaves: The agent that has the driver.
        to: The agent that is to have it; None: any other.
        version: Of the specification that the new driver has.
        previous: What the old one has.
        kept: So many standbys stay at least, for whoever goes back to an older version.
        until: When a standby must be READY.
        standby: The run that is to take over.
        failed: Standbys that ended before they could.
        handed_at: When the standby was told to, or for an upgrade the driver to make room.
        taken_at: When it became the job's driver.
        failure: The new version failed; the job is going back.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cause: Literal["move", "drain", "upgrade"]
    operation: str | None = None
    leaves: str
    to: str | None = None
    version: int
    previous: int
    kept: int = 0
    until: datetime
    standby: str | None = None
    failed: int = 0
    handed_at: datetime | None = None
    taken_at: datetime | None = None
    failure: Failure | None = None


def of(job: JobRow) -> Moving | None:
    """The one of a job."""
    return Moving.model_validate(job.moving) if job.moving else None


def kept(moving: Moving) -> dict[str, Any]:
    """As it is kept in the job's row."""
    return moving.model_dump(mode="json")


async def begin(
    session: AsyncSession,
    job: JobRow,
    cause: Literal["move", "drain", "upgrade"],
    *,
    leaves: str,
    previous: int,
    version: int,
    timeout_s: float,
    kept_standbys: int = 0,
    to: str | None = None,
    operation: str | None = None,
) -> JobRow:
    """Begin one; another that has not got a standby to take over yet makes room for it.

    Raises:
        Fenced: Somebody changed the job since.
    """
    until = await now(session) + timedelta(seconds=timeout_s)
    moving = Moving(
        cause=cause,
        operation=operation,
        leaves=leaves,
        to=to,
        version=version,
        previous=previous,
        kept=kept_standbys,
        until=until,
    )
    row = await jobs.change(session, job, moving=kept(moving))
    events.append(session, "job.move.began", job=row.id, data={"cause": cause, "operation": operation, "to": to})
    await audit.asked(session, f"job.{cause}", row.id, to=to, version=version)
    return row


async def end(session: AsyncSession, job: JobRow, moving: Moving, failure: Failure | None) -> None:
    """Tell how it ended; `job` has it no more."""
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
