"""Jobs: create, list, get, change, delete, and look at one before it is created."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import SpecError
from clonos.resources.base import Page
from clonos.resources.jobs import DesiredState, Job, JobCreate, JobPatch, JobState, JobVersion
from clonos.resources.service import JobValidation, Operation, Role
from clonos.spec import JobSpec
from clonos_api import checkpoint_owners, lookups, spec_guards, start_points, views
from clonos_api.bodies import IfMatch, Limit, StartingAfter, document_of, etag, job_create, matched_version, page
from clonos_api.documented import ETAG, LOCATION, document_body, problems
from clonos_api.idempotency import Once, idempotent
from clonos_api.inspection import findings
from clonos_api.routes.access import API, Operator, OwnJob, Viewer, changing, known_job
from clonos_api.routes.operations import accepted
from clonos_api.services import Settings, Store
from clonos_api.store import artifacts, jobs, operations, runs
from clonos_api.store.tables import JobRow

router = APIRouter(prefix=f"{API}/jobs", tags=["jobs"])

# What the reconciler needs to cancel, and then some.
_DELETE_S = 120.0


@router.post(
    "",
    status_code=201,
    response_model=Job,
    openapi_extra=document_body(JobCreate, JobSpec),
    responses=problems(404, 415),
)
async def create_job(
    caller: Operator,
    store: Store,
    settings: Settings,
    body: Annotated[JobCreate, Depends(job_create)],
    once: Annotated[Once, idempotent()],
) -> Response:
    """Create a job, and start it at once unless it says otherwise."""
    spec_guards.refuse(spec_guards.check_spec(body.spec))
    async with store.transaction(by=caller.actor) as session:
        await checkpoint_owners.check(session, caller, body.spec, settings)
        row = await jobs.create(
            session,
            body.spec,
            body.artifact,
            owner=caller.subject,
            start=body.start,
            start_from=body.start_from,
            any_name=caller.may(Role.ADMIN),
        )
        if body.start_from is not None:
            await start_points.check(session, caller, body.spec.name, body.start_from, None)
        headers = {"Location": f"{API}/jobs/{row.id}", "ETag": etag(row.version)}
        return await once.answer(session, 201, views.job(row, None), headers=headers)


@router.post("/validate", openapi_extra=document_body(JobCreate, JobSpec), responses=problems(404, 415))
async def validate_job(
    caller: Operator, store: Store, body: Annotated[JobCreate, Depends(job_create)]
) -> JobValidation:
    """Look at a specification and its code without creating anything: field problems, and what the linter finds."""
    async with store.reading() as session:
        row = await artifacts.get(session, body.artifact)
        content = await artifacts.content(session, body.artifact)
    wrong = spec_guards.check_spec(body.spec)
    found, unreadable = await findings(row, content, body.spec.spec.main)
    return JobValidation(valid=not wrong and not unreadable, problems=[*wrong, *unreadable], findings=found)


@router.get("")
async def list_jobs(
    caller: Viewer,
    store: Store,
    state: Annotated[list[JobState] | None, Query(description="Any of these.")] = None,
    label: Annotated[list[str] | None, Query(description="`name=value`; all of these.", max_length=20)] = None,
    name: Annotated[str | None, Query(max_length=100, description="Names that contain it.")] = None,
    owner: Annotated[str | None, Query(max_length=100)] = None,
    limit: Limit = 50,
    starting_after: StartingAfter = None,
) -> Page[Job]:
    """List jobs that are not deleted, newest first."""
    async with store.reading() as session:
        found = await jobs.page(
            session,
            states=state,
            labels=_labels(label or []),
            name=name,
            owner=owner,
            limit=limit,
            starting_after=starting_after,
        )
        hosts = await lookups.hosts_of_runs(session, [row.run for row in found.rows if row.run])
    return page((views.job(row, hosts.get(row.run or "")) for row in found.rows), found.next)


@router.get("/{job}", responses=ETAG)
async def get_job(caller: Viewer, store: Store, row: Annotated[JobRow, Depends(known_job)], response: Response) -> Job:
    """One job."""
    response.headers["ETag"] = etag(row.version)
    return await _shown(store, row)


@router.patch("/{job}", openapi_extra=document_body(JobPatch), responses={**ETAG, **problems(412, 415, 428)})
async def update_job(
    caller: Operator,
    job: OwnJob,
    store: Store,
    settings: Settings,
    body: Annotated[JobPatch, Depends(document_of(JobPatch))],
    response: Response,
    if_match: IfMatch = None,
) -> Job:
    """Give a job another specification or other code; it counts from the next start."""
    if body.spec is not None:
        spec_guards.refuse(spec_guards.check_spec(body.spec))

    async def change(session: AsyncSession) -> JobRow:
        row = await jobs.get(session, job.id)
        version = matched_version(if_match, row.version)
        if body.spec is None and body.artifact is None:
            return row
        if body.spec is not None:
            await checkpoint_owners.check(session, caller, body.spec, settings)
        return await jobs.patch(
            session, row, version=version, spec=body.spec, artifact=body.artifact, by=caller.subject
        )

    row = await changing(store, caller.actor, change)
    response.headers["ETag"] = etag(row.version)
    return await _shown(store, row)


@router.delete("/{job}", status_code=202, response_model=Operation, responses=LOCATION)
async def delete_job(caller: Operator, job: OwnJob, store: Store) -> Response:
    """Delete a job; one that runs is cancelled first. Its savepoints stay."""

    async def change(session: AsyncSession) -> Operation:
        row = await jobs.get(session, job.id)
        begun = await operations.begin(session, "delete", job=row.id, timeout_s=_DELETE_S, by=caller.subject)
        if row.state in jobs.SETTLED and not await runs.open_of_job(session, row.id):
            await jobs.delete(session, row)
            begun = await operations.complete(session, begun)
        elif row.desired_state != DesiredState.CANCELED:
            await jobs.desire(session, row, DesiredState.CANCELED)
        return views.operation(begun)

    return accepted(await changing(store, caller.actor, change))


@router.get("/{job}/versions")
async def list_job_versions(
    caller: Viewer,
    store: Store,
    row: Annotated[JobRow, Depends(known_job)],
    limit: Limit = 50,
    starting_after: StartingAfter = None,
) -> Page[JobVersion]:
    """The specifications that a job has and had, newest first."""
    async with store.reading() as session:
        found = await jobs.versions(session, row.id, limit=limit, starting_after=starting_after)
    return page(map(views.job_version, found.rows), found.next)


async def _shown(store: Store, row: JobRow) -> Job:
    async with store.reading() as session:
        hosts = await lookups.hosts_of_runs(session, [row.run] if row.run else [])
    return views.job(row, hosts.get(row.run or ""))


def _labels(given: list[str]) -> dict[str, str]:
    labels = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not name or not equals:
            raise SpecError(f"label={one!r} is no label.", kept="nothing was changed.", hint="use label=name=value.")
        labels[name] = value
    return labels
