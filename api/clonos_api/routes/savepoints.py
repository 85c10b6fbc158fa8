"""Checkpoints of a job, and savepoints."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Body, Depends, Path, Query, Response
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import StateConflict
from clonos.resources.base import Page
from clonos.resources.checkpoints import Checkpoint, Checkpoints, Savepoint, SavepointCreate
from clonos.resources.service import Operation
from clonos_api import spec_guards, views
from clonos_api.bodies import Limit, StartingAfter, page
from clonos_api.documented import LOCATION
from clonos_api.idempotency import Once, idempotent
from clonos_api.routes.access import API, IdPath, Operator, OwnJob, Viewer, changing, known_job
from clonos_api.routes.operations import accepted, where
from clonos_api.services import Settings, Store
from clonos_api.store import jobs, operations, progress, savepoints
from clonos_api.store.clock import now
from clonos_api.store.tables import JobRow

checkpoints_of_jobs = APIRouter(prefix=f"{API}/jobs", tags=["checkpoints"])
savepoints_of_jobs = APIRouter(prefix=f"{API}/jobs", tags=["savepoints"])
router = APIRouter(prefix=f"{API}/savepoints", tags=["savepoints"])

_SAVEPOINT_S: Final = 600.0
KnownJob = Annotated[JobRow, Depends(known_job)]


@checkpoints_of_jobs.get("/{job}/checkpoints")
async def list_checkpoints(caller: Viewer, store: Store, row: KnownJob, limit: Limit = 50) -> Checkpoints:
    """Counts, summary, the latest of each kind, and the newest so many."""
    async with store.reading() as session:
        return await progress.checkpoints(session, row.id, limit=limit)


@checkpoints_of_jobs.get("/{job}/checkpoints/{epoch}")
async def get_checkpoint(
    caller: Viewer,
    store: Store,
    row: KnownJob,
    epoch: Annotated[int, Path(ge=0, le=2**62)],
    query: Annotated[str | None, Query(max_length=100, description="Of which query; default the only one.")] = None,
) -> Checkpoint:
    """One finished epoch."""
    async with store.reading() as session:
        return await progress.one(session, row.id, epoch, query)


@savepoints_of_jobs.post("/{job}/savepoints", status_code=202, response_model=Operation, responses=LOCATION)
async def create_savepoint(
    caller: Operator,
    job: OwnJob,
    store: Store,
    settings: Settings,
    once: Annotated[Once, idempotent()],
    body: Annotated[SavepointCreate | None, Body()] = None,
) -> Response:
    """Take a savepoint: a copy of the job's checkpoint at finished epochs. The operation's result names it."""
    asked = body or SavepointCreate(name=None)
    if asked.location is not None:
        spec_guards.refuse(spec_guards.check_location(asked.location, "location"))

    async def change(session: AsyncSession) -> Response:
        row = await jobs.get(session, job.id)
        if row.run is None:
            raise StateConflict(f"Job {row.name} never ran.", hint="start it first.")
        name = asked.name or await _name(session, row)
        folder = asked.location or settings.savepoint_location
        made = await savepoints.create(session, row, name=name, location=folder)
        begun = await operations.begin(
            session,
            "savepoint",
            job=row.id,
            arguments={"savepoint": made.id},
            timeout_s=_SAVEPOINT_S,
            by=caller.subject,
        )
        shown = views.operation(begun)
        return await once.answer(session, 202, shown, headers=where(shown))

    return await changing(store, caller.actor, change)


@savepoints_of_jobs.get("/{job}/savepoints")
async def list_job_savepoints(
    caller: Viewer, store: Store, row: KnownJob, limit: Limit = 50, starting_after: StartingAfter = None
) -> Page[Savepoint]:
    """A job's savepoints, newest first."""
    async with store.reading() as session:
        found = await savepoints.page(session, job=row.id, limit=limit, starting_after=starting_after)
    return page(map(views.savepoint, found.rows), found.next)


@router.get("")
async def list_savepoints(
    caller: Viewer, store: Store, limit: Limit = 50, starting_after: StartingAfter = None
) -> Page[Savepoint]:
    """All savepoints, also of jobs that were deleted; newest first."""
    async with store.reading() as session:
        found = await savepoints.page(session, limit=limit, starting_after=starting_after)
    return page(map(views.savepoint, found.rows), found.next)


@router.get("/{savepoint}")
async def get_savepoint(savepoint: IdPath, caller: Viewer, store: Store) -> Savepoint:
    """One savepoint."""
    async with store.reading() as session:
        return views.savepoint(await savepoints.get(session, savepoint))


@router.delete("/{savepoint}", status_code=202, response_model=Operation, responses=LOCATION)
async def delete_savepoint(savepoint: IdPath, caller: Operator, store: Store) -> Response:
    """Delete a savepoint and its files."""

    async def change(session: AsyncSession) -> Operation:
        row = await savepoints.get(session, savepoint)
        caller.must_own((await jobs.get(session, row.job, deleted=True)).owner)
        await savepoints.begin_delete(session, row)
        begun = await operations.begin(
            session,
            "delete-savepoint",
            job=row.job,
            arguments={"savepoint": row.id},
            timeout_s=_SAVEPOINT_S,
            by=caller.subject,
        )
        return views.operation(begun)

    return accepted(await changing(store, caller.actor, change))


async def _name(session: AsyncSession, job: JobRow) -> str:
    """Job, newest epoch and time, for a savepoint that was given no name."""
    newest = (await progress.page(session, job.id, limit=1)).rows
    epoch = newest[0].epoch if newest else 0
    return f"{job.name[:60]}-{epoch}-{await now(session):%Y%m%d-%H%M%S}"
