"""The pages that show what the store has: overview, hosts, clusters, events; and the form to submit a job."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import select

from clonos.resources.base import Problem
from clonos_api.auth.cookies import is_visit
from clonos_api.dashboard.live import PulseDep
from clonos_api.dashboard.rendering import Page, render
from clonos_api.replica import DatabaseDep
from clonos_api.routes.access import Operator, Viewer
from clonos_api.store import clusters, hosts, jobs, lookups, standbys, views
from clonos_api.store.event_views import EventViews
from clonos_api.store.tables import EventRow, JobRow, RunRow, StandbyRow

router = APIRouter(include_in_schema=False)

_PAGE: Final = 100
# Choices of the filter of events: first parts of their types.
KINDS: Final = ("job", "run", "standby", "host", "cluster", "operation", "savepoint", "artifact", "token")
EXAMPLE: Final = """\
apiVersion: clonos/v1
kind: Job
metadata:
  name: my-job
spec:
  main: job.py
  params: {}
  standby:
    replicas: 1
"""


@router.get("/")
async def overview(caller: Viewer, request: Request, pulse: PulseDep) -> Response:
    """Show hosts as columns and jobs as rows."""
    board = await pulse.boards.newest()
    values = {"board": board, "shown": pulse.drawn.around(board), "rows": await pulse.drawn.filled(board)}
    return render(request, Page("overview.html", "Overview"), values)


@router.get("/hosts")
async def show_hosts(caller: Viewer, request: Request, database: DatabaseDep) -> Response:
    """Show all hosts with their drivers and standbys."""
    async with database.reading() as session:
        rows = await hosts.every(session)
        loads = await hosts.loads(session)
        running = (
            select(RunRow.host, JobRow.name, RunRow.state)
            .join(JobRow, JobRow.run == RunRow.id)
            .where(RunRow.ended_at.is_(None), JobRow.deleted_at.is_(None))
            .order_by(JobRow.name)
        )
        drivers: dict[str, list[tuple[str, str]]] = {}
        for host, job, state in await session.execute(running):
            drivers.setdefault(host, []).append((job, state))
        warming = select(StandbyRow).where(StandbyRow.state.in_(standbys.WAITING)).order_by(StandbyRow.id)
        waiting = list(await session.scalars(warming))
        names = await lookups.host_names(session)
        lags = await standbys.lags(session, waiting)
        of = select(JobRow.id, JobRow.name).where(JobRow.id.in_({row.job for row in waiting}))
        names_of_jobs = dict((await session.execute(of)).all()) if waiting else {}
    warm: dict[str, list[tuple[str, object]]] = {}
    for row in waiting:
        standby = views.standby(row, names, lags.get(row.id))
        warm.setdefault(row.host, []).append((names_of_jobs.get(row.job or "", ""), standby))
    shown = [(views.host(row, loads.get(row.id, 0)), drivers.get(row.id, []), warm.get(row.id, [])) for row in rows]
    return render(request, Page("hosts.html", "Hosts"), {"hosts": shown})


@router.get("/clusters")
async def show_clusters(caller: Viewer, request: Request, database: DatabaseDep) -> Response:
    """Show all Spark clusters."""
    async with database.reading() as session:
        rows = await clusters.every(session)
        users = await clusters.users(session)
        shown = [views.cluster(row, users.get(name, [])) for name, row in rows.items()]
    return render(request, Page("clusters.html", "Spark clusters"), {"clusters": shown})


@router.get("/events")
async def list_events(
    caller: Viewer,
    request: Request,
    database: DatabaseDep,
    kind: Annotated[str | None, Query(max_length=64)] = None,
    job: Annotated[str | None, Query(max_length=100)] = None,
    before: Annotated[int | None, Query(ge=1, le=2**62)] = None,
) -> Response:
    """Show a page of events, newest first, filtered by kind and job; `before`: only events with a smaller number."""
    async with database.reading() as session:
        of = (await jobs.get(session, job, deleted=True)).id if job else None
        query = select(EventRow).order_by(EventRow.seq.desc()).limit(_PAGE + 1)
        if of is not None:
            query = query.where(EventRow.job == of)
        if kind:
            query = query.where((EventRow.type == kind) | EventRow.type.startswith(f"{kind}.", autoescape=True))
        if before is not None:
            query = query.where(EventRow.seq < before)
        rows = list(await session.scalars(query))
        events = await EventViews().of(session, rows[:_PAGE])
    more = rows[_PAGE - 1].seq if len(rows) > _PAGE else None
    values = {"events": events, "kinds": KINDS, "kind": kind, "job": job, "more": more, "follow": before is None}
    return render(request, Page("events.html", "Events"), {**values, "single": False})


@router.get("/events/{seq}")
async def show_event(seq: int, caller: Viewer, request: Request, database: DatabaseDep) -> Response:
    """Show the page of one event, with its further fields."""
    async with database.reading() as session:
        row = await session.get(EventRow, seq)
        events = await EventViews().of(session, [row] if row is not None else [])
    values = {"events": events, "kinds": KINDS, "kind": None, "job": None, "more": None, "follow": False}
    return render(
        request, Page("events.html", f"Event {seq}"), {**values, "single": True}, status=200 if events else 404
    )


@router.get("/submit")
async def submit(caller: Operator, request: Request) -> Response:
    """Show the form to submit a job."""
    return render(request, Page("submit.html", "Submit a job"), {"example": EXAMPLE})


_RETRY_S: Final = 5


def page_of(request: Request, problem: Problem) -> Response | None:
    """Return a problem (RFC 9457) as an HTML page; None if the client is not a browser."""
    if not is_visit(request):
        return None
    title = "The control plane is unavailable" if problem.status >= 500 else "This page is not available"
    more = problem.type[1:] if problem.type.startswith("/") else None  # its page in the documentation
    texts = {"what": problem.detail, "kept": problem.kept, "hint": problem.hint, "more": more}
    again_s = _RETRY_S if problem.status == 429 or problem.status >= 500 else None
    return render(request, Page("error.html", title), {**texts, "again_s": again_s}, status=problem.status)
