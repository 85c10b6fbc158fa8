"""The log of a job's drivers: its end, what came after, or as it grows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query
from starlette.responses import Response

from clonos.errors import StoreAway
from clonos.resources.jobs import LogLines
from clonos_api.auth import Principal
from clonos_api.documented import STREAM
from clonos_api.routes.access import API, Viewer, known_job
from clonos_api.services import Replica, Services
from clonos_api.sse import HEARTBEAT, EventStream, encode
from clonos_api.store import logs
from clonos_api.store.tables import JobRow

router = APIRouter(prefix=f"{API}/jobs", tags=["logs"])

_LINES = 1000
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"model": LogLines, "content": STREAM[200]["content"], "description": "Lines, or a stream of them."}
}

Cursor = Annotated[
    str | None, Query(max_length=200, pattern=r"^[\x21-\x7e]+$", description="`next` of the answer before.")
]


@router.get("/{job}/logs", response_model=LogLines, responses=_ANSWERS)
async def get_logs(
    caller: Viewer,
    replica: Replica,
    row: Annotated[JobRow, Depends(known_job)],
    tail: Annotated[int, Query(ge=0, le=10_000, description="Without `after`: so many of the newest lines.")] = 200,
    after: Cursor = None,
    follow: Annotated[bool, Query(description="Go on as server-sent events, one a line.")] = False,
    last_event_id: Annotated[str | None, Header(max_length=200)] = None,
) -> LogLines | Response:
    """The newest lines, or those after a place; with `follow` also what comes, as events whose ids are places."""
    place = last_event_id if follow and last_event_id else after
    if follow:
        replica.check_streams()
    async with replica.database.reading() as session:
        if place is None:
            lines = await logs.tail(session, row.id, tail)
        else:
            lines = await logs.read(session, row.id, place, _LINES)
    return EventStream(_follow(replica, caller, row.id, lines)) if follow else lines


async def _follow(replica: Services, caller: Principal, job: str, lines: LogLines) -> AsyncIterator[bytes]:
    watch = replica.log_watch
    with replica.stream(caller, watch.wake) as held, watch.following(job) as more:
        while True:
            yield _written(lines) or HEARTBEAT
            place = lines.next
            # Only a whole batch may have more behind it; else wait until the log has grown.
            if len(lines.lines) < _LINES:
                await more(min(replica.settings.heartbeat_s, held.left_s))
            if watch.closed or held.over():
                return
            try:
                async with replica.database.reading() as session:
                    lines = await logs.read(session, job, place, _LINES)
            except StoreAway:
                return  # the client comes back with the last place that it got


def _written(lines: LogLines) -> bytes:
    """One event a line. Only the last has an id: it is the place after all of them."""
    if not lines.lines:
        return b""
    events = [encode(line) for line in lines.lines[:-1]]
    return b"".join([*events, encode(lines.lines[-1], number=lines.next)])
