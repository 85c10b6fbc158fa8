"""Events: as a stream that can be resumed, and as a list."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query

from clonos.errors import StoreAway
from clonos.resources.base import Moment, Page
from clonos.resources.service import Event
from clonos_api import views
from clonos_api.auth import Principal
from clonos_api.bodies import Limit, page
from clonos_api.documented import STREAM, problems
from clonos_api.feed import Wanted
from clonos_api.routes.access import API, Viewer
from clonos_api.services import Replica, Services, Store
from clonos_api.sse import HEARTBEAT, EventStream, encode
from clonos_api.store import events, jobs

router = APIRouter(prefix=f"{API}/events", tags=["events"])

_LARGEST = 2**62
Types = Annotated[
    list[str] | None,
    Query(alias="type", max_length=20, description="Whole types (`job.state`) or first parts (`job`); any of these."),
]
JobQuery = Annotated[str | None, Query(max_length=100, description="Id or name of a job.")]


@router.get("", status_code=200, response_class=EventStream, responses={**STREAM, **problems(404)})
async def stream_events(
    caller: Viewer,
    replica: Replica,
    job: JobQuery = None,
    types: Types = None,
    after: Annotated[int | None, Query(ge=0, le=_LARGEST, description="Start after this number.")] = None,
    last_event_id: Annotated[str | None, Header(max_length=20, pattern=r"^\d{1,18}$")] = None,
) -> EventStream:
    """What happens from now on, or after the event that `Last-Event-ID` names. Comments show that the stream lives.

    Where events were asked for that are not kept any more, the stream begins with one of type ``gap``.
    """
    replica.check_streams()
    of = None
    if job is not None:
        async with replica.database.reading() as session:
            of = (await jobs.get(session, job, deleted=True)).id
    await replica.feed.started()
    asked = int(last_event_id) if last_event_id is not None else after
    start, gap = (replica.feed.newest, b"") if asked is None else await start_after(replica, asked)
    return EventStream(_stream(replica, caller, Wanted(of, tuple(types or ())), start, gap))


@router.get("/history", responses=problems(404))
async def list_events(
    caller: Viewer,
    store: Store,
    job: JobQuery = None,
    types: Types = None,
    after: Annotated[int, Query(ge=0, le=_LARGEST, description="Start after this number.")] = 0,
    since: Annotated[Moment | None, Query(description="Only what happened then or later.")] = None,
    tail: Annotated[
        int | None, Query(ge=1, le=1000, description="Without pages, the newest so many; follow from `next`.")
    ] = None,
    limit: Limit = 50,
) -> Page[Event]:
    """Events, oldest first; go on with `after` = `next`."""
    async with store.reading() as session:
        of = None if job is None else (await jobs.get(session, job, deleted=True)).id
        wanted: dict[str, Any] = {"job": of, "types": types, "since": since}
        if tail is not None:
            # Read first: what comes between is told twice rather than never, and has its number.
            _, newest = await events.bounds(session)
            rows = await events.after(session, after, **wanted, limit=tail, newest=True)
            return Page(data=[views.event(row) for row in rows], next=str(max(newest, *(row.seq for row in rows), 0)))
        rows = await events.after(session, after, **wanted, limit=limit + 1)
    return page(map(views.event, rows[:limit]), str(rows[limit - 1].seq) if len(rows) > limit else None)


async def start_after(replica: Services, asked: int) -> tuple[int, bytes]:
    """Where a stream begins that is to go on after a number, and what it says first.

    Events after `asked` may not be kept any more, or the number may be of another database. That this replica has not
    heard of it yet means nothing: another one has told it.
    """
    async with replica.database.reading() as session:
        oldest, newest = await events.bounds(session)
    if oldest <= asked + 1 and asked <= newest:
        return asked, b""
    return min(asked, newest), encode(f'{{"oldest": {oldest}, "newest": {newest}}}', event="gap")


async def _stream(replica: Services, caller: Principal, wanted: Wanted, place: int, gap: bytes) -> AsyncIterator[bytes]:
    feed, settings = replica.feed, replica.settings
    with replica.stream(caller, feed.wake) as held:
        # Answers begin at once: who waits for the first event knows that the stream is there.
        yield gap or HEARTBEAT
        while not feed.closed and not held.over():
            more = await feed.wait(place, min(settings.heartbeat_s, held.left_s))
            if held.over():
                return
            if not more:
                yield HEARTBEAT
                continue
            try:
                found, place = await feed.after(place, wanted)
            except StoreAway:
                return  # the client comes back with the id of the last event that it got
            if found:
                yield b"".join(one.written for one in found)
