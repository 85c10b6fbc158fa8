"""The page of a job: figures, history and actions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, NamedTuple

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resolve_command import named_epoch, proposes_new_code
from clonos.resources.checkpoints import Savepoint
from clonos.resources.clusters import Cluster
from clonos.resources.hosts import HostState
from clonos.resources.incidents import sentence
from clonos.resources.job_graph import GraphEdge, JobGraph, OperatorNode, QueryNode, TopicNode
from clonos.resources.jobs import Job, JobException, JobState, JobVersion, Run, VersionDiff
from clonos.resources.service import Role
from clonos_api.admission import version_diff
from clonos_api.dashboard.job_live import Lead, line_of
from clonos_api.dashboard.live import PulseDep
from clonos_api.dashboard.rendering import Page, render
from clonos_api.fleet import Board
from clonos_api.replica import DatabaseDep
from clonos_api.routes.access import KnownJob, Viewer
from clonos_api.store import (
    clusters,
    counters,
    generations,
    job_exceptions,
    job_graph,
    job_series,
    jobs,
    lookups,
    progress,
    recoveries,
    savepoints,
    standbys,
    verifications,
    views,
)
from clonos_api.store.db.paging import Window
from clonos_api.store.tables import JobRow, RunRow

router = APIRouter(include_in_schema=False)

Tab = Literal["overview", "recoveries", "checkpoints", "logs", "configuration"]
_EPOCHS: Final = Window(30)
_ROWS: Final = Window(50)
# The charts of a younger job show five minutes at first, other charts an hour.
_YOUNG: Final = timedelta(minutes=10)


@router.get("/jobs/{job}")
async def show_job(
    caller: Viewer,
    request: Request,
    database: DatabaseDep,
    pulse: PulseDep,
    row: KnownJob,
    tab: Tab = "overview",
    version: Annotated[int | None, Query(ge=1)] = None,
) -> Response:
    """Show one tab of a job; in the tab ``configuration`` compared with `version`."""
    board = await pulse.boards.newest()
    line = line_of(board, row.id)
    owns = caller.may(Role.ADMIN) or caller.subject == row.created_by  # as for the content of artifacts
    diff: VersionDiff | None = None
    code: list[tuple[str, str]] = []
    if tab == "configuration" and owns and row.deleted_at is None:
        main = row.spec.spec.main or "job.py"
        code = await version_diff.listing(database, row.artifact, main)
    if tab == "configuration" and version is not None:
        async with database.reading() as session:
            stored = [await jobs.stored_version(session, row, number) for number in (version, row.version)]
        diff = await version_diff.compare(database, *stored, code=owns)
    async with database.reading() as session:
        names = await lookups.hosts_of_runs(session, [row.run])
        shown = views.job(row, names.get(row.run or ""))
        values: dict[str, Any] = {
            "job": shown,
            "line": line,
            "lead": Lead.of(line).whole(),
            "deleted": row.deleted_at,
            "moving": row.moving,
            "blocked": _blocked(shown, board),
            "proof": (await verifications.newest(session, job=row.id)).get(row.id),
            "is_owner": caller.subject == row.created_by,
            "metrics": await progress.metrics(session, row),
            "cluster": await _cluster(session, shown.spec.spec.cluster),
            "run": await _run(session, row, names),
            **_decisions(shown.failure.hint if shown.failure else ""),
            "worked": await jobs.worked(session, row, but=row.version),
            "diff": diff,
            "code": code,
            "tab": tab,
            "tabs": TABS,
            **await _TABS[tab][1](session, row, version),
        }
    return render(request, Page("job.html", shown.name), values)


def _blocked(job: Job, board: Board) -> dict[str, str]:
    """Return the buttons that cannot work now: label → reason. They include the buttons of a job that does not run."""
    ready = [host.name for host in board.hosts if host.state == HostState.READY]
    blocked = {}
    if not ready:
        blocked["Verify"] = "no host is READY"
    if job.state not in (JobState.RUNNING, JobState.STARTING, JobState.RECOVERING):
        return blocked
    if job.run is None:
        blocked["Savepoint"] = "the job has never run"
    elif not ready:
        blocked["Savepoint"] = "no host is READY"
    if not [name for name in ready if name != job.host]:
        blocked["Move"] = "no other host is READY"
    return blocked


async def _cluster(session: AsyncSession, name: str) -> Cluster | None:
    """Return the job's Spark cluster; None: it has a local master, or the cluster was removed."""
    row = (await clusters.every(session)).get(name) if name else None
    return views.cluster(row, []) if row is not None else None


async def _run(session: AsyncSession, row: JobRow, names: dict[str, str]) -> Run | None:
    """Return the run of the job's driver; None: there is none, or retention has deleted it."""
    run = await session.get(RunRow, row.run) if row.run else None
    return views.run(run, names) if run is not None else None


async def _overview(session: AsyncSession, row: JobRow, version: int | None) -> dict[str, Any]:
    return {
        "ranges": list(job_series.RANGES),
        "span_at_first": "5m" if datetime.now(UTC) - row.created_at < _YOUNG else "1h",
        "offsets": await progress.offsets(session, row),
        "epochs": (await progress.page(session, row.id, _EPOCHS)).rows,
        "flows": flows_of(await job_graph.of_job(session, row)),
    }


class QueryFlow(NamedTuple):
    """A query of a job's graph, with its operators, what it reads and what it writes."""

    query: QueryNode
    operators: list[OperatorNode]
    inputs: list[tuple[GraphEdge, TopicNode]]
    outputs: list[tuple[GraphEdge, TopicNode]]


def flows_of(graph: JobGraph) -> list[QueryFlow]:
    """Return the queries of `graph` in their order. Dead letters are the first output."""
    flows = {node.id: QueryFlow(node, [], [], []) for node in graph.nodes if isinstance(node, QueryNode)}
    topics = {node.id: node for node in graph.nodes if isinstance(node, TopicNode)}
    for node in graph.nodes:
        if isinstance(node, OperatorNode):
            flows[node.query].operators.append(node)
    for edge in sorted(graph.edges, key=lambda edge: edge.kind != "dead-letters"):
        if edge.kind == "input":
            flows[edge.target].inputs.append((edge, topics[edge.source]))
        else:
            flows[edge.source].outputs.append((edge, topics[edge.target]))
    return list(flows.values())


async def _recoveries(session: AsyncSession, row: JobRow, version: int | None) -> dict[str, Any]:
    waiting = (await standbys.page(session, _ROWS, job=row.id)).rows
    lags = await standbys.lags(session, waiting)
    names = await lookups.host_names(session)
    listed = [views.standby(standby, names, lags.get(standby.id)) for standby in waiting]
    rows = (await recoveries.page(session, row.id, _ROWS)).rows
    claims = (await generations.page(session, row.id, _ROWS)).rows
    hosts = await lookups.hosts_of_runs(session, [claim.run for claim in claims])
    return {
        "standbys": [standby for standby in listed if standby.state in standbys.WAITING],
        "earlier_standbys": [standby for standby in listed if standby.state not in standbys.WAITING],
        "recoveries": [(recovery, sentence(recovery)) for recovery in map(views.recovery, rows)],
        "generations": [views.generation(claim, hosts.get(claim.run, "")) for claim in claims],
    }


async def _checkpoints(session: AsyncSession, row: JobRow, version: int | None) -> dict[str, Any]:
    rows = (await savepoints.page(session, _ROWS, job=row.id)).rows
    sums = await counters.of_job(session, row.id)
    return {
        "checkpoints": await progress.checkpoints(session, row.id, limit=20),
        "savepoints": [views.resource(Savepoint, savepoint) for savepoint in rows],
        "log": await progress.causal_log(session, row),
        "diverged": sums.get("diverged_lanes", 0),
    }


async def _logs(session: AsyncSession, row: JobRow, version: int | None) -> dict[str, Any]:
    rows = (await job_exceptions.page(session, row.id, _ROWS)).rows
    return {"exceptions": [views.resource(JobException, exception) for exception in rows]}


async def _configuration(session: AsyncSession, row: JobRow, version: int | None) -> dict[str, Any]:
    rows = (await jobs.versions(session, row.id, _ROWS)).rows
    present = next((stored for stored in rows if stored.version == row.version), None)
    versions = [views.resource(JobVersion, stored) for stored in rows]
    return {"versions": versions, "text": version_diff.text_of(present) if present else ""}


_TABS: Final = {
    "overview": ("Overview", _overview),
    "recoveries": ("Recoveries", _recoveries),
    "checkpoints": ("Checkpoints", _checkpoints),
    "logs": ("Logs", _logs),
    "configuration": ("Configuration", _configuration),
}
TABS: Final = {tab: title for tab, (title, _) in _TABS.items()}


def _decisions(hint: str) -> dict[str, Any]:
    """Return the epoch in doubt that a hint names, and whether the decision is about new code, also of older
    drivers.
    """
    named = named_epoch(hint)
    of_code = named is not None and named.decision == "new-code"
    return {"in_doubt": None if of_code else named, "other_code": of_code or proposes_new_code(hint)}
