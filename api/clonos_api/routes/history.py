"""What happened to a job, and how it is doing."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path

from clonos.errors import NotFound
from clonos.resources.base import Page
from clonos.resources.hosts import Standby
from clonos.resources.jobs import CausalLog, Generation, JobException, Metrics, Offsets, Recovery, Run
from clonos_api import lookups, views
from clonos_api.bodies import Limit, StandbyStates, StartingAfter, page
from clonos_api.routes.access import API, Viewer, known_job
from clonos_api.services import Store
from clonos_api.store import exceptions, generations, progress, recoveries, runs, standbys
from clonos_api.store.tables import JobRow

router = APIRouter(prefix=f"{API}/jobs", tags=["history"])

RunPath = Annotated[str, Path(pattern=r"^[0-9a-f-]{36}$", description="Id of a run.")]
RecoveryPath = Annotated[str, Path(pattern=r"^[0-9a-f-]{36}$", description="Id of a recovery.")]
KnownJob = Annotated[JobRow, Depends(known_job)]


@router.get("/{job}/runs")
async def list_runs(
    caller: Viewer, store: Store, row: KnownJob, limit: Limit = 50, starting_after: StartingAfter = None
) -> Page[Run]:
    """A job's placements on hosts, newest first."""
    async with store.reading() as session:
        found = await runs.of_job(session, row.id, limit=limit, starting_after=starting_after)
        names = await lookups.host_names(session)
    return page((views.run(one, names) for one in found.rows), found.next)


@router.get("/{job}/runs/{run}")
async def get_run(run: RunPath, caller: Viewer, store: Store, row: KnownJob) -> Run:
    """One placement; a job's `run` is the one whose driver works for it, which need not be the newest."""
    async with store.reading() as session:
        found = await runs.get(session, run)
        if found.job != row.id:
            raise NotFound(f"The job {row.name} has no run {run}.")
        names = await lookups.host_names(session)
    return views.run(found, names)


@router.get("/{job}/generations")
async def list_generations(
    caller: Viewer, store: Store, row: KnownJob, limit: Limit = 50, starting_after: StartingAfter = None
) -> Page[Generation]:
    """The claims of a job's causal log, newest first."""
    async with store.reading() as session:
        found = await generations.page(session, row.id, limit=limit, starting_after=starting_after)
        hosts = await lookups.hosts_of_runs(session, [one.run for one in found.rows])
    return page((views.generation(one, hosts.get(one.run, "")) for one in found.rows), found.next)


@router.get("/{job}/recoveries")
async def list_recoveries(
    caller: Viewer, store: Store, row: KnownJob, limit: Limit = 50, starting_after: StartingAfter = None
) -> Page[Recovery]:
    """A job's recoveries, newest first."""
    async with store.reading() as session:
        found = await recoveries.page(session, row.id, limit=limit, starting_after=starting_after)
    return page(map(views.recovery, found.rows), found.next)


@router.get("/{job}/recoveries/{recovery}")
async def get_recovery(recovery: RecoveryPath, caller: Viewer, store: Store, row: KnownJob) -> Recovery:
    """One recovery."""
    async with store.reading() as session:
        return views.recovery(await recoveries.get(session, row.id, recovery))


@router.get("/{job}/exceptions")
async def list_exceptions(
    caller: Viewer, store: Store, row: KnownJob, limit: Limit = 50, starting_after: StartingAfter = None
) -> Page[JobException]:
    """Errors that a job's drivers told, newest first."""
    async with store.reading() as session:
        found = await exceptions.page(session, row.id, limit=limit, starting_after=starting_after)
    return page(map(views.job_exception, found.rows), found.next)


@router.get("/{job}/metrics")
async def get_metrics(caller: Viewer, store: Store, row: KnownJob) -> Metrics:
    """Sums and rates of a job."""
    async with store.reading() as session:
        return await progress.metrics(session, row)


@router.get("/{job}/offsets")
async def list_offsets(caller: Viewer, store: Store, row: KnownJob) -> Page[Offsets]:
    """Where the sources of each query are, and how far behind."""
    async with store.reading() as session:
        return page(await progress.offsets(session, row), None)


@router.get("/{job}/causal-log")
async def get_causal_log(caller: Viewer, store: Store, row: KnownJob) -> CausalLog:
    """The job's causal log, as its drivers tell of it."""
    async with store.reading() as session:
        return await progress.causal_log(session, row)


@router.get("/{job}/standbys")
async def list_job_standbys(
    caller: Viewer,
    store: Store,
    row: KnownJob,
    state: StandbyStates = None,
    limit: Limit = 50,
    starting_after: StartingAfter = None,
) -> Page[Standby]:
    """Warm drivers that wait for a job, or did."""
    async with store.reading() as session:
        names = await lookups.host_names(session)
        found = await standbys.page(session, job=row.id, states=state, limit=limit, starting_after=starting_after)
        lags = await standbys.lags(session, found.rows)
    return page((views.standby(one, names, lags.get(one.id)) for one in found.rows), found.next)
