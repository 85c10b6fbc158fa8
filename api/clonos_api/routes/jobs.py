"""REST routes for jobs: validate, create, list, get, update and delete."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import StringConstraints
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.jobs.spec import JobSpec
from clonos.resources.base import Page
from clonos.resources.jobs import (
    DesiredState,
    Job,
    JobCreate,
    JobPatch,
    JobState,
    JobSummary,
    JobVersion,
    VersionDiff,
)
from clonos.resources.service import JobValidation, Operation, Role
from clonos_api.admission import (
    artifact_bytes,
    checkpoint_owners,
    clusters,
    job_changes,
    spec_checks,
    start_points,
    version_diff,
)
from clonos_api.guards.idempotency import OnceDep
from clonos_api.http.bodies import TEXT, IfMatch, check_version, document_of, etag, job_create, matched_version
from clonos_api.http.checked_json import CheckedRoute
from clonos_api.replica import DatabaseDep, ReplicaDep, SettingsDep
from clonos_api.routes.access import (
    API,
    KnownJob,
    NumberWindowDep,
    Operator,
    OwnJob,
    ReadingDep,
    ReadJob,
    Viewer,
    WindowDep,
    changing,
)
from clonos_api.routes.documented import ETAG, LOCATION, document_body, problems
from clonos_api.routes.operations import accepted
from clonos_api.store import artifacts, jobs, lookups, operations, runs, views
from clonos_api.store.tables import JobRow

router = APIRouter(route_class=CheckedRoute, prefix=f"{API}/jobs", tags=["jobs"])

# Longer than the reconciler takes to cancel a job.
_DELETE_S = 120.0
_Label = Annotated[str, StringConstraints(pattern=r"^[^=\"\x00-\x1f\x7f-\x9f]+=[^\x00-\x1f\x7f-\x9f]*$")]


@router.post(
    "",
    status_code=201,
    response_model=Job,
    openapi_extra=document_body(JobCreate, JobSpec),
    responses=problems(404, 415),
)
async def create_job(
    caller: Operator,
    database: DatabaseDep,
    settings: SettingsDep,
    body: Annotated[JobCreate, Depends(job_create)],
    once: OnceDep,
) -> Response:
    """Create a job and start it, unless `start` is false."""
    spec_checks.refuse(spec_checks.check_spec(body.spec))
    async with database.transaction(by=caller.actor) as session:
        spec_checks.refuse(await clusters.check_job(session, body.spec))
        await checkpoint_owners.check_checkpoint(session, caller, body.spec.name, body.spec.spec.checkpoint, settings)
        row = await jobs.create(
            session,
            body.spec,
            body.artifact,
            created_by=caller.subject,
            start=body.start,
            start_from=body.start_from,
            adopt=body.adopt,
            any_name=caller.may(Role.ADMIN),
        )
        if body.start_from is not None:
            await start_points.check(session, caller, body.spec.name, body.start_from, None)
        created = views.job(row, None)
        headers = {"Location": f"{API}/jobs/{row.id}", "ETag": etag(created)}
        return await once.answer(session, 201, created, headers=headers)


@router.post("/validate", openapi_extra=document_body(JobCreate, JobSpec), responses=problems(404, 415))
async def validate_job(
    caller: Operator, database: DatabaseDep, replica: ReplicaDep, body: Annotated[JobCreate, Depends(job_create)]
) -> JobValidation:
    """Validate a specification and its code without creating a job: invalid fields and linter findings."""
    async with database.reading() as session:
        row = await artifacts.get(session, body.artifact)
        invalid = [*spec_checks.check_spec(body.spec), *await clusters.check_job(session, body.spec)]
    copy = partial(artifact_bytes.copy, database, row)
    main = body.spec.spec.main
    reported, unreadable = await replica.inspector.findings(row, copy, main, by=caller.subject)
    return JobValidation(valid=not invalid and not unreadable, problems=[*invalid, *unreadable], findings=reported)


@router.get("")
async def list_jobs(
    caller: Viewer,
    session: ReadingDep,
    window: WindowDep,
    state: Annotated[list[JobState] | None, Query(description="States; a job matches any of them.")] = None,
    label: Annotated[
        list[_Label] | None, Query(description="`name=value`; a job matches all of them.", max_length=20)
    ] = None,
    name: Annotated[str | None, Query(max_length=100, pattern=TEXT, description="Part of the name.")] = None,
    created_by: Annotated[str | None, Query(max_length=100, pattern=TEXT)] = None,
) -> Page[JobSummary]:
    """List jobs that are not deleted, newest first. `GET /jobs/{job}` also has the specification."""
    labels = dict(_split(pair) for pair in label or [])
    result = await jobs.page(session, window, states=state, labels=labels, name=name, created_by=created_by)
    hosts = await lookups.hosts_of_runs(session, [row.run for row in result.rows if row.run])
    return views.listed((views.job_summary(row, hosts.get(row.run or "")) for row in result.rows), result.next)


@router.get("/{job}", responses=ETAG)
async def get_job(caller: Viewer, database: DatabaseDep, row: KnownJob, response: Response) -> Job:
    """Get one job: its specification, desired state and state."""
    return await _shown(database, row, response)


@router.patch("/{job}", openapi_extra=document_body(JobPatch), responses={**ETAG, **problems(412, 415, 428)})
async def update_job(
    caller: Operator,
    job: OwnJob,
    database: DatabaseDep,
    settings: SettingsDep,
    body: Annotated[JobPatch, Depends(document_of(JobPatch))],
    response: Response,
    if_match: IfMatch = None,
) -> Job:
    """Update the specification or the code of a job. The change takes effect at the next start."""
    job_changes.check(body)

    async def change(session: AsyncSession) -> JobRow:
        row = await jobs.get(session, job.id)
        version = matched_version(if_match, row.version)
        return await job_changes.store(session, caller, row, body, settings, version=version)

    return await _shown(database, await changing(database, caller.actor, change), response)


@router.delete("/{job}", status_code=202, response_model=Operation, responses={**LOCATION, **problems(412)})
async def delete_job(
    caller: Operator, once: OnceDep, job: OwnJob, database: DatabaseDep, if_match: IfMatch = None
) -> Response:
    """Delete a job; a running job is cancelled first. Its savepoints stay."""

    async def change(session: AsyncSession) -> Response:
        row = await jobs.get(session, job.id)
        check_version(if_match, row.version)
        operation = await operations.begin(session, "delete", job=row.id, timeout_s=_DELETE_S, by=caller.subject)
        if row.state in jobs.SETTLED and not await runs.open_of_job(session, row.id):
            await jobs.delete(session, row)
            operation = await operations.complete(session, operation)
        elif row.desired_state != DesiredState.CANCELED:
            await jobs.desire(session, row, DesiredState.CANCELED)
        return await accepted(session, operation, once)

    return await changing(database, caller.actor, change)


@router.get("/{job}/versions")
async def list_job_versions(
    caller: Viewer,
    session: ReadingDep,
    row: ReadJob,
    window: NumberWindowDep,
) -> Page[JobVersion]:
    """List the versions of a job's specification, newest first."""
    return views.page(JobVersion, await jobs.versions(session, row.id, window))


@router.get("/{job}/versions/diff")
async def compare_job_versions(
    caller: Operator,
    database: DatabaseDep,
    row: OwnJob,
    before: Annotated[int, Query(ge=1, le=2**31 - 1, description="Number of the older version.")],
    after: Annotated[
        int | None,
        Query(ge=1, le=2**31 - 1, description="Number of the newer version. Default: the version of the next start."),
    ] = None,
) -> VersionDiff:
    """Compare the specification and the code of two versions of a job, as its owner."""
    async with database.reading() as session:
        old = await jobs.stored_version(session, row, before)
        new = await jobs.stored_version(session, row, after if after is not None else row.version)
    return await version_diff.compare(database, old, new, code=True)


async def _shown(database: DatabaseDep, row: JobRow, response: Response) -> Job:
    async with database.reading() as session:
        hosts = await lookups.hosts_of_runs(session, [row.run] if row.run else [])
    job = views.job(row, hosts.get(row.run or ""))
    response.headers["ETag"] = etag(job)
    return job


def _split(pair: str) -> tuple[str, str]:
    name, _, value = pair.partition("=")
    return name, value
