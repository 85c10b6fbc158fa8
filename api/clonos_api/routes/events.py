"""REST routes for events: as a resumable stream, and as a list."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.sse import format_sse_event
from pydantic import StringConstraints

from clonos.errors import DatabaseUnavailable
from clonos.resources.base import Moment, Page
from clonos.resources.service import GAP, Event
from clonos_api.auth import Principal
from clonos_api.http.bodies import TEXT, Limit
from clonos_api.http.sse import HEARTBEAT_EVENT, EventStream
from clonos_api.replica import Replica, ReplicaDep
from clonos_api.routes.access import API, JobQuery, ReadingDep, Viewer
from clonos_api.routes.documented import STREAM, problems
from clonos_api.store import events, jobs, views
from clonos_api.store.db import paging
from clonos_api.store.event_views import EventViews
from clonos_api.streams.feed import EventFilter

router = APIRouter(prefix=f"{API}/events", tags=["events"])

_LARGEST = 2**62
Types = Annotated[
    list[Annotated[str, StringConstraints(pattern=TEXT)]] | None,
    Query(
        alias="type",
        max_length=20,
        description="Event types (`job.state`) or their first parts (`job`); an event matches any of them.",
    ),
]


@router.get("", status_code=200, response_class=EventStream, responses={**STREAM, **problems(404)})
async def stream_events(
    caller: Viewer,
    replica: ReplicaDep,
    job: JobQuery = None,
    types: Types = None,
    after: Annotated[int | None, Query(ge=0, le=_LARGEST, description="Start after this number.")] = None,
    last_event_id: Annotated[str | None, Header(max_length=20, pattern=r"^[0-9]{1,18}$")] = None,
) -> EventStream:
    """Stream new events, or all events after the one that `Last-Event-ID` names.

    Events of type `heartbeat`, without data, show that the connection is alive. The stream begins with an event of
    type `gap` if the requested events are no longer stored.
    """
    replica.check_streams(caller)
    of = None
    if job is not None:
        async with replica.database.reading() as session:
            of = (await jobs.get(session, job, deleted=True)).id
    await replica.feed.started()
    asked = int(last_event_id) if last_event_id is not None else after
    start, gap = (replica.feed.newest, b"") if asked is None else await start_after(replica, asked)
    return EventStream(_stream(replica, caller, EventFilter(of, tuple(types or ())), start, gap))


@router.get("/history", responses=problems(404))
async def list_events(
    caller: Viewer,
    session: ReadingDep,
    job: JobQuery = None,
    types: Types = None,
    after: Annotated[int, Query(ge=0, le=_LARGEST, description="Start after this number.")] = 0,
    since: Annotated[Moment | None, Query(description="Only events at this time or later.")] = None,
    tail: Annotated[
        int | None,
        Query(ge=1, le=1000, description="Only the newest N events, without pages; continue with `after` = `next`."),
    ] = None,
    limit: Limit = 50,
) -> Page[Event]:
    """List events, oldest first; continue with `after` = `next`."""
    of = None if job is None else (await jobs.get(session, job, deleted=True)).id
    query: dict[str, Any] = {"job": of, "types": types, "since": since}
    if tail is not None:
        # Read first: an event in between is then returned twice instead of never, with the same number.
        _, newest = await events.bounds(session)
        rows = await events.after(session, after, **query, limit=tail, newest=True)
        last = str(max(newest, *(row.seq for row in rows), 0))
        return Page(data=await EventViews().of(session, rows), next=last)
    rows = await events.after(session, after, **query, limit=limit + 1)
    page = paging.cut(rows, paging.Window(limit), lambda row: str(row.seq))
    return views.listed(await EventViews().of(session, page.rows), page.next)


async def start_after(replica: Replica, asked: int) -> tuple[int, bytes]:
    """Where a stream starts that was requested after number `asked`: the number of the event before its first one,
    and its first bytes (a ``gap`` event or none).

    There is a gap if events after `asked` are no longer stored, or if the number is from another database. A number
    that this replica has not read yet is valid: another replica sent it.
    """
    async with replica.database.reading() as session:
        oldest, newest = await events.bounds(session)
    if oldest <= asked + 1 and asked <= newest:
        return asked, b""
    return min(asked, newest), format_sse_event(data_str=f'{{"oldest": {oldest}, "newest": {newest}}}', event=GAP)


async def _stream(
    replica: Replica, caller: Principal, wanted: EventFilter, cursor: int, gap: bytes
) -> AsyncIterator[bytes]:
    feed, settings = replica.feed, replica.settings
    with replica.stream(caller, feed.wake) as held:
        # Send bytes at once, so that the client knows that the stream is open.
        yield gap or HEARTBEAT_EVENT
        while not feed.closed and not held.over():
            more = await feed.wait(cursor, min(settings.heartbeat_s, held.left_s))
            if held.over():
                return
            if not more:
                yield HEARTBEAT_EVENT
                continue
            try:
                sent, cursor = await feed.after(cursor, wanted)
            except DatabaseUnavailable:
                return  # the client reconnects with the id of its last event
            if sent:
                yield b"".join(event.encoded for event in sent)
