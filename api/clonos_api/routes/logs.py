"""REST route for the log of a job's drivers: its newest lines, the lines after a cursor, or a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.sse import format_sse_event
from starlette.responses import Response

from clonos.errors import DatabaseUnavailable
from clonos.resources.jobs import LogLines
from clonos_api.auth import Principal
from clonos_api.http.sse import HEARTBEAT_EVENT, EventStream
from clonos_api.replica import Replica, ReplicaDep
from clonos_api.routes.access import API, KnownJob, Viewer
from clonos_api.routes.documented import STREAM
from clonos_api.store import logs

router = APIRouter(prefix=f"{API}/jobs", tags=["logs"])

_LINES = 1000
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"model": LogLines, "content": STREAM[200]["content"], "description": "Lines, or a stream of lines."}
}

Cursor = Annotated[str | None, Query(pattern=logs.CURSOR, description="`next` of the previous response.")]


@router.get("/{job}/logs", response_model=LogLines, responses=_ANSWERS)
async def get_logs(
    caller: Viewer,
    replica: ReplicaDep,
    row: KnownJob,
    tail: Annotated[int, Query(ge=0, le=10_000, description="Without `after`: the number of newest lines.")] = 200,
    after: Cursor = None,
    follow: Annotated[bool, Query(description="Continue as server-sent events, one per line.")] = False,
    last_event_id: Annotated[str | None, Header(pattern=logs.CURSOR)] = None,
) -> LogLines | Response:
    """Get the newest log lines, or those after a cursor; with `follow`, stream new lines with cursors as ids."""
    cursor = last_event_id if follow and last_event_id else after
    if follow:
        replica.check_streams(caller)
    async with replica.database.reading() as session:
        if cursor is None:
            lines = await logs.tail(session, row.id, tail)
        else:
            lines = await logs.read(session, row.id, cursor, _LINES)
    return EventStream(_follow(replica, caller, row.id, lines)) if follow else lines


async def _follow(replica: Replica, caller: Principal, job: str, lines: LogLines) -> AsyncIterator[bytes]:
    watch = replica.log_watch
    with replica.stream(caller, watch.wake) as held, watch.following(job) as more:
        while True:
            yield _written(lines) or HEARTBEAT_EVENT
            cursor = lines.next
            # After a full batch there may be more lines; otherwise wait until the log grows.
            if len(lines.lines) < _LINES:
                await more(min(replica.settings.heartbeat_s, held.left_s))
            if watch.closed or held.over():
                return
            try:
                async with replica.database.reading() as session:
                    lines = await logs.read(session, job, cursor, _LINES)
            except DatabaseUnavailable:
                return  # the client reconnects with its last cursor


def _written(lines: LogLines) -> bytes:
    """One event per line. Only the last event has an id: the cursor after all of them."""
    if not lines.lines:
        return b""
    events = [format_sse_event(data_str=line) for line in lines.lines[:-1]]
    return b"".join([*events, format_sse_event(data_str=lines.lines[-1], id=lines.next)])
