"""REST routes for a job's runs, generations, recoveries, errors, metrics, graph, offsets, causal log and standbys."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from clonos.errors import NotFound
from clonos.resources.base import Page
from clonos.resources.hosts import Standby
from clonos.resources.incidents import Incident, ListedRecovery
from clonos.resources.job_graph import JobGraph
from clonos.resources.jobs import CausalLog, Generation, JobException, Metrics, Offsets, Recovery, Run
from clonos.resources.series import Series, SeriesRange
from clonos_api.http.bodies import StandbyStates
from clonos_api.http.checked_json import CheckedRoute
from clonos_api.routes.access import (
    API,
    GenerationWindowDep,
    NameWindowDep,
    NumberWindowDep,
    ReadingDep,
    ReadJob,
    Viewer,
    WindowDep,
)
from clonos_api.store import (
    generations,
    incidents,
    job_exceptions,
    job_graph,
    job_series,
    lookups,
    progress,
    recoveries,
    runs,
    standbys,
    views,
)
from clonos_api.store.db import paging

router = APIRouter(route_class=CheckedRoute, prefix=f"{API}/jobs", tags=["history"])
of_all_jobs = APIRouter(route_class=CheckedRoute, prefix=f"{API}/recoveries", tags=["history"])

RunPath = Annotated[str, Path(pattern=r"^[0-9a-f-]{36}$", description="Id of a run.")]
RecoveryPath = Annotated[str, Path(pattern=r"^[0-9a-f-]{36}$", description="Id of a recovery.")]


@router.get("/{job}/runs")
async def list_runs(caller: Viewer, session: ReadingDep, row: ReadJob, window: WindowDep) -> Page[Run]:
    """List the runs of a job (its placements on hosts), newest first."""
    result = await runs.of_job(session, row.id, window)
    names = await lookups.host_names(session)
    return views.listed((views.run(run, names) for run in result.rows), result.next)


@router.get("/{job}/runs/{run}")
async def get_run(run: RunPath, caller: Viewer, session: ReadingDep, row: ReadJob) -> Run:
    """Get one run by its id. A job's field `run` names the run that drives the job, which is not always the newest."""
    result = await runs.get(session, run)
    if result.job != row.id:
        raise NotFound(f"The job {row.name} has no run {run}.")
    names = await lookups.host_names(session)
    return views.run(result, names)


@router.get("/{job}/generations")
async def list_generations(
    caller: Viewer, session: ReadingDep, row: ReadJob, window: GenerationWindowDep
) -> Page[Generation]:
    """List the generations of a job (claims of its causal log), newest first."""
    result = await generations.page(session, row.id, window)
    hosts = await lookups.hosts_of_runs(session, [generation.run for generation in result.rows])
    return views.listed(
        (views.generation(generation, hosts.get(generation.run, "")) for generation in result.rows), result.next
    )


@of_all_jobs.get("")
async def list_all_recoveries(caller: Viewer, session: ReadingDep, window: WindowDep) -> Page[ListedRecovery]:
    """List the recoveries of all jobs, newest first, each with the job's name and a sentence."""
    result = await incidents.page(session, window)
    return views.listed(result.rows, result.next)


@router.get("/{job}/recoveries")
async def list_recoveries(caller: Viewer, session: ReadingDep, row: ReadJob, window: WindowDep) -> Page[Recovery]:
    """List the recoveries of a job, newest first."""
    result = await recoveries.page(session, row.id, window)
    return views.listed(map(views.recovery, result.rows), result.next)


@router.get("/{job}/recoveries/{recovery}")
async def get_recovery(recovery: RecoveryPath, caller: Viewer, session: ReadingDep, row: ReadJob) -> Incident:
    """Get one recovery by its id: its phases, a sentence, what was lost, and earlier recoveries in comparison."""
    return await incidents.get(session, row, recovery)


@router.get("/{job}/exceptions")
async def list_exceptions(
    caller: Viewer, session: ReadingDep, row: ReadJob, window: NumberWindowDep
) -> Page[JobException]:
    """List the errors that a job's drivers reported, newest first."""
    return views.page(JobException, await job_exceptions.page(session, row.id, window))


@router.get("/{job}/metrics")
async def get_metrics(caller: Viewer, session: ReadingDep, row: ReadJob) -> Metrics:
    """Get the metrics of a job: for each query totals, current rates, epoch durations and lag."""
    return await progress.metrics(session, row)


@router.get("/{job}/series")
async def get_series(
    caller: Viewer,
    session: ReadingDep,
    row: ReadJob,
    span: Annotated[SeriesRange, Query(alias="range", description="How far back the figures begin.")] = "1h",
) -> Series:
    """Get a job's figures over time: records per second, durations of epochs and lag of each query, in intervals.

    An interval without epochs has no point. Recoveries, versions and savepoints of the range are listed beside.
    """
    return await job_series.of_job(session, row.id, span)


@router.get("/{job}/graph")
async def get_graph(caller: Viewer, session: ReadingDep, row: ReadJob) -> JobGraph:
    """Get the graph of a job: the topics of each query, its operators, and rates and lag between them.

    The job's newest driver reported its parts with its claim. Without such a report the graph has no nodes.
    """
    return await job_graph.of_job(session, row)


@router.get("/{job}/offsets")
async def list_offsets(caller: Viewer, session: ReadingDep, row: ReadJob, window: NameWindowDep) -> Page[Offsets]:
    """List the source offsets and the lag of each query, by the query's name."""
    result = paging.by_name(await progress.offsets(session, row), lambda offsets: offsets.query, window)
    return views.listed(result.rows, result.next)


@router.get("/{job}/causal-log")
async def get_causal_log(caller: Viewer, session: ReadingDep, row: ReadJob) -> CausalLog:
    """Get the overview of a job's causal log: numbers of determinants, their bytes, and truncations."""
    return await progress.causal_log(session, row)


@router.get("/{job}/standbys")
async def list_job_standbys(
    caller: Viewer,
    session: ReadingDep,
    row: ReadJob,
    window: WindowDep,
    state: StandbyStates = None,
) -> Page[Standby]:
    """List the standbys of a job, current and former, newest first."""
    names = await lookups.host_names(session)
    result = await standbys.page(session, window, job=row.id, states=state)
    lags = await standbys.lags(session, result.rows)
    return views.listed((views.standby(standby, names, lags.get(standby.id)) for standby in result.rows), result.next)
