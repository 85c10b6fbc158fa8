"""REST routes for the checkpoints of a job, and for savepoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Body, Path, Query, Response
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import StateConflict
from clonos.resources.base import Page
from clonos.resources.checkpoints import Checkpoints, EpochCheckpoint, Savepoint, SavepointCreate
from clonos.resources.service import Operation
from clonos_api.admission import checkpoint_owners, spec_checks
from clonos_api.auth import require_owner
from clonos_api.guards.idempotency import OnceDep
from clonos_api.http.bodies import TEXT, Limit
from clonos_api.http.checked_json import CheckedRoute
from clonos_api.replica import DatabaseDep, SettingsDep
from clonos_api.routes.access import (
    API,
    IdPath,
    Operator,
    OwnJob,
    ReadingDep,
    ReadJob,
    Viewer,
    WindowDep,
    changing,
)
from clonos_api.routes.documented import LOCATION
from clonos_api.routes.operations import accepted
from clonos_api.store import jobs, operations, progress, savepoints, views
from clonos_api.store.columns import OperationArguments
from clonos_api.store.db.clock import now
from clonos_api.store.db.paging import Window
from clonos_api.store.tables import JobRow

checkpoints_of_jobs = APIRouter(route_class=CheckedRoute, prefix=f"{API}/jobs", tags=["checkpoints"])
savepoints_of_jobs = APIRouter(route_class=CheckedRoute, prefix=f"{API}/jobs", tags=["savepoints"])
router = APIRouter(route_class=CheckedRoute, prefix=f"{API}/savepoints", tags=["savepoints"])

_SAVEPOINT_S: Final = 600.0


@dataclass(frozen=True)
class OwnedSavepoint:
    """The id of a savepoint, with the subject that created its job."""

    id: str
    created_by: str


async def savepoint_of_path(savepoint: IdPath, database: DatabaseDep) -> OwnedSavepoint:
    """Return the savepoint whose id is in the path. It belongs to the owner of its job, which may be deleted."""
    async with database.reading() as session:
        row = await savepoints.get(session, savepoint)
        return OwnedSavepoint(row.id, (await jobs.get(session, row.job, deleted=True)).created_by)


OwnSavepoint = Annotated[OwnedSavepoint, require_owner(savepoint_of_path)]


@checkpoints_of_jobs.get("/{job}/checkpoints")
async def list_checkpoints(caller: Viewer, session: ReadingDep, row: ReadJob, limit: Limit = 50) -> Checkpoints:
    """Get a job's checkpoints (finished epochs): counts, a summary, the latest of each kind, and the newest `limit`."""
    return await progress.checkpoints(session, row.id, limit=limit)


@checkpoints_of_jobs.get("/{job}/checkpoints/{epoch}")
async def get_checkpoint(
    caller: Viewer,
    session: ReadingDep,
    row: ReadJob,
    epoch: Annotated[int, Path(ge=0, le=2**62)],
    query: Annotated[
        str | None,
        Query(max_length=100, pattern=TEXT, description="Name of the query; required if the job has several."),
    ] = None,
) -> EpochCheckpoint:
    """Get the checkpoint of one finished epoch."""
    return await progress.get(session, row.id, epoch, query)


@savepoints_of_jobs.post("/{job}/savepoints", status_code=202, response_model=Operation, responses=LOCATION)
async def create_savepoint(
    caller: Operator,
    job: OwnJob,
    database: DatabaseDep,
    settings: SettingsDep,
    once: OnceDep,
    body: Annotated[SavepointCreate | None, Body()] = None,
) -> Response:
    """Take a savepoint: a copy of the job's checkpoint. The result of the operation has the savepoint's id."""
    request = body or SavepointCreate(name=None)
    if request.location is not None:
        spec_checks.refuse(spec_checks.check_location(request.location, "location"))

    async def change(session: AsyncSession) -> Response:
        row = await jobs.get(session, job.id)
        await checkpoint_owners.check_savepoints(session, caller, request.location, settings)
        if row.run is None:
            raise StateConflict(f"Job {row.name} never ran.", hint="start it first.")
        name = request.name or await _name(session, row)
        folder = request.location or settings.savepoint_location
        savepoint = await savepoints.create(session, row, name=name, location=folder)
        operation = await operations.begin(
            session,
            "savepoint",
            job=row.id,
            arguments=OperationArguments(savepoint=savepoint.id),
            timeout_s=_SAVEPOINT_S,
            by=caller.subject,
        )
        return await accepted(session, operation, once)

    return await changing(database, caller.actor, change)


@savepoints_of_jobs.get("/{job}/savepoints")
async def list_job_savepoints(caller: Viewer, session: ReadingDep, row: ReadJob, window: WindowDep) -> Page[Savepoint]:
    """List the savepoints of a job, newest first."""
    return views.page(Savepoint, await savepoints.page(session, window, job=row.id))


@router.get("")
async def list_savepoints(caller: Viewer, session: ReadingDep, window: WindowDep) -> Page[Savepoint]:
    """List all savepoints, also of deleted jobs, newest first."""
    return views.page(Savepoint, await savepoints.page(session, window))


@router.get("/{savepoint}")
async def get_savepoint(savepoint: IdPath, caller: Viewer, session: ReadingDep) -> Savepoint:
    """Get one savepoint by its id."""
    return views.resource(Savepoint, await savepoints.get(session, savepoint))


@router.delete("/{savepoint}", status_code=202, response_model=Operation, responses=LOCATION)
async def delete_savepoint(caller: Operator, once: OnceDep, savepoint: OwnSavepoint, database: DatabaseDep) -> Response:
    """Delete a savepoint and its files."""

    async def change(session: AsyncSession) -> Response:
        row = await savepoints.get(session, savepoint.id)
        await savepoints.begin_delete(session, row)
        operation = await operations.begin(
            session,
            "delete-savepoint",
            job=row.job,
            arguments=OperationArguments(savepoint=row.id),
            timeout_s=_SAVEPOINT_S,
            by=caller.subject,
        )
        return await accepted(session, operation, once)

    return await changing(database, caller.actor, change)


async def _name(session: AsyncSession, job: JobRow) -> str:
    """Return the default name of a savepoint: job, newest epoch and time."""
    newest = (await progress.page(session, job.id, Window(1))).rows
    epoch = newest[0].epoch if newest else 0
    return f"{job.name[:60]}-{epoch}-{await now(session):%Y%m%d-%H%M%S}"
