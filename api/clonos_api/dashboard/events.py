"""The events page: newest first; every event has its own URL."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import select

from clonos.resources.service import Event
from clonos_api.dashboard.rendering import Page, render
from clonos_api.replica import DatabaseDep
from clonos_api.routes.access import Viewer
from clonos_api.store import jobs, lookups, views
from clonos_api.store.tables import EventRow, JobRow

router = APIRouter(include_in_schema=False)
_PAGE = 100
# Choices of the filter: first parts of event types.
KINDS = ("job", "run", "standby", "host", "cluster", "operation", "artifact", "token")


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
        hosts = await lookups.host_names(session)
        named = select(JobRow.id, JobRow.name).where(JobRow.id.in_({row.job for row in rows if row.job}))
        names = dict((await session.execute(named)).all()) if rows else {}
    shown = [(views.resource(Event, row), names.get(row.job or ""), hosts.get(row.host or "")) for row in rows[:_PAGE]]
    more = rows[_PAGE - 1].seq if len(rows) > _PAGE else None
    values = {"events": shown, "kinds": KINDS, "kind": kind, "job": job, "more": more, "follow": before is None}
    return render(request, Page("events.html", "Events"), values)


@router.get("/events/{seq}")
async def show_event(seq: int, caller: Viewer, request: Request, database: DatabaseDep) -> Response:
    """Show the page of one event."""
    async with database.reading() as session:
        row = await session.get(EventRow, seq)
        hosts = await lookups.host_names(session)
        job = await session.get(JobRow, row.job) if row is not None and row.job else None
    shown = [] if row is None else [(views.resource(Event, row), job.name if job else None, hosts.get(row.host or ""))]
    values = {"events": shown, "kinds": KINDS, "kind": None, "job": None, "more": None, "follow": False}
    return render(request, Page("events.html", f"Event {seq}"), values, status=200 if shown else 404)
