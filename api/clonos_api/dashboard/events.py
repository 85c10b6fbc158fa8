"""The events page: sentences, newest first; every event has its own URL."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import select

from clonos_api.dashboard.rendering import Page, render
from clonos_api.replica import DatabaseDep
from clonos_api.routes.access import Viewer
from clonos_api.store import jobs
from clonos_api.store.event_views import EventViews
from clonos_api.store.tables import EventRow

router = APIRouter(include_in_schema=False)
_PAGE = 100
# Choices of the filter: first parts of event types.
KINDS = ("job", "run", "standby", "host", "cluster", "operation", "savepoint", "artifact", "token")


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
