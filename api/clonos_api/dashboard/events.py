"""Events: what happened, newest first; each has an address of its own."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import select

from clonos_api import lookups, views
from clonos_api.dashboard.rendering import Page, render
from clonos_api.routes.access import Viewer
from clonos_api.services import Store
from clonos_api.store import jobs
from clonos_api.store.tables import EventRow, JobRow

router = APIRouter(include_in_schema=False)
_PAGE = 100
# What can be chosen; `clonos_api.feed.Wanted` takes first parts of types.
KINDS = ("job", "run", "standby", "agent", "operation", "artifact", "token")


@router.get("/events")
async def list_events(
    caller: Viewer,
    request: Request,
    store: Store,
    kind: Annotated[str | None, Query(max_length=64)] = None,
    job: Annotated[str | None, Query(max_length=100)] = None,
    before: Annotated[int | None, Query(ge=1, le=2**62)] = None,
) -> Response:
    """A page of events, of a kind and of a job if that is asked for."""
    async with store.reading() as session:
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
        named = select(JobRow.id, JobRow.name).where(JobRow.id.in_({one.job for one in rows if one.job}))
        names = dict((await session.execute(named)).all()) if rows else {}
    shown = [(views.event(one), names.get(one.job or ""), hosts.get(one.agent or "")) for one in rows[:_PAGE]]
    more = rows[_PAGE - 1].seq if len(rows) > _PAGE else None
    values = {"events": shown, "kinds": KINDS, "kind": kind, "job": job, "more": more, "follow": before is None}
    return render(request, Page("events.html", "Events"), values)


@router.get("/events/{seq}")
async def show_event(seq: int, caller: Viewer, request: Request, store: Store) -> Response:
    """One event."""
    async with store.reading() as session:
        row = await session.get(EventRow, seq)
        hosts = await lookups.host_names(session)
        job = await session.get(JobRow, row.job) if row is not None and row.job else None
    shown = [] if row is None else [(views.event(row), job.name if job else None, hosts.get(row.agent or ""))]
    values = {"events": shown, "kinds": KINDS, "kind": None, "job": None, "more": None, "follow": False}
    return render(request, Page("events.html", f"Event {seq}"), values, status=200 if shown else 404)
