"""REST route for the log of a job's drivers: its newest lines, the lines after a cursor, a stream, or a text file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query
from fastapi.sse import format_sse_event
from pydantic_core import to_json
from starlette.responses import Response, StreamingResponse

from clonos.errors import DatabaseUnavailable
from clonos.resources.base import Moment
from clonos.resources.jobs import LogLines
from clonos.telemetry.log_entries import Level, LogFilter
from clonos_api.auth import Principal
from clonos_api.http.sse import HEARTBEAT_EVENT, EventStream
from clonos_api.replica import Replica, ReplicaDep
from clonos_api.routes.access import API, KnownJob, Viewer
from clonos_api.routes.documented import STREAM
from clonos_api.store import logs
from clonos_api.store.log_entries import LogReader

router = APIRouter(prefix=f"{API}/jobs", tags=["logs"])

_LINES: Final = 1000
_OLDEST: Final = "0:0"
_TEXT: Final = "text/plain; charset=utf-8"
_PIECE_BYTES: Final = 256 * 1024  # of a download
# Keeps the connection open. A heartbeat would say that no more lines are stored.
_SEARCHING: Final = format_sse_event(comment="searching")
_ENDED: Final = "The download ended before the end of the log: its time is over, or its token was revoked.\n"
_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "model": LogLines,
        "content": {**STREAM[200]["content"], "text/plain": {"schema": {"type": "string"}}},
        "description": "Lines or entries, a stream of them, or a text file.",
    }
}

Cursor = Annotated[str | None, Query(pattern=logs.CURSOR, description="`next` of the previous response.")]


@router.get("/{job}/logs", response_model=LogLines, responses=_ANSWERS)
async def get_logs(
    caller: Viewer,
    replica: ReplicaDep,
    row: KnownJob,
    tail: Annotated[
        int, Query(ge=0, le=10_000, description="Without `after`: the number of newest lines or entries.")
    ] = 200,
    after: Cursor = None,
    before: Annotated[
        str | None, Query(pattern=logs.CURSOR, description="Only older lines: `older` of the previous response.")
    ] = None,
    follow: Annotated[bool, Query(description="Continue as server-sent events, one per line or entry.")] = False,
    level: Annotated[Level | None, Query(description="Only entries of this level or a higher one.")] = None,
    search: Annotated[str, Query(max_length=200, description="Only entries with this text, in any case.")] = "",
    since: Annotated[Moment | None, Query(description="Only entries at this time or later.")] = None,
    parsed: Annotated[
        bool, Query(description="Return `entries` instead of `lines`. An event of a stream is the JSON of an entry.")
    ] = False,
    download: Annotated[
        bool, Query(description="Return all stored lines that match, as a text file; without `tail` and `after`.")
    ] = False,
    last_event_id: Annotated[str | None, Header(pattern=logs.CURSOR)] = None,
) -> LogLines | Response:
    """Get the newest log lines, or those after a cursor; with `follow`, stream new lines with cursors as ids.

    An entry is a line with the lines that continue it, such as a traceback. The filters apply to entries.
    """
    reader = LogReader(row.id, LogFilter(level, search, since), parsed=parsed and not download)
    cursor = last_event_id if follow and last_event_id else after
    if follow or download:
        replica.check_streams(caller)
    async with replica.database.reading() as session:
        if download:
            part = await reader.following(session, _OLDEST, _LINES)
        elif cursor is None:
            part = await reader.newest(session, tail, before)
        else:
            part = await reader.following(session, cursor, _LINES)
    if download:
        headers = {"Content-Disposition": f'attachment; filename="{row.name}.log"', "Cache-Control": "no-store"}
        return StreamingResponse(_text(replica, caller, reader, part), headers=headers, media_type=_TEXT)
    return EventStream(_follow(replica, caller, row.id, reader, part, tail)) if follow else part


async def _text(replica: Replica, caller: Principal, reader: LogReader, first: LogLines) -> AsyncIterator[bytes]:
    part, watch = first, replica.log_watch
    with replica.stream(caller, watch.wake) as held:
        while True:
            text = "".join(f"{line}\n" for line in part.lines).encode("utf-8", "replace")
            for start in range(0, len(text), _PIECE_BYTES):
                yield text[start : start + _PIECE_BYTES]
                if watch.closed or held.over():
                    break
            else:
                if not part.more:
                    return
            if watch.closed or held.over():
                yield _ENDED.encode()
                return
            async with replica.database.reading() as session:
                part = await reader.following(session, part.next, _LINES)


async def _follow(
    replica: Replica, caller: Principal, job: str, reader: LogReader, first: LogLines, tail: int
) -> AsyncIterator[bytes]:
    watch = replica.log_watch
    part = first
    with replica.stream(caller, watch.wake) as held, watch.following(job) as changed:
        try:
            while part.older is not None and part.count < tail:
                yield _SEARCHING
                if watch.closed or held.over():
                    return
                async with replica.database.reading() as session:
                    part = part.with_older(await reader.newest(session, tail - part.count, part.older))
            while True:
                yield _written(part) or (_SEARCHING if part.more else HEARTBEAT_EVENT)
                if not part.more:
                    await changed(min(replica.settings.heartbeat_s, held.left_s))
                if watch.closed or held.over():
                    return
                async with replica.database.reading() as session:
                    part = await reader.following(session, part.next, _LINES)
        except DatabaseUnavailable:
            return  # the client reconnects with its last cursor


def _written(part: LogLines) -> bytes:
    """One event per line or entry. Only the last event has an id: the cursor after all of them."""
    texts = part.lines or [to_json(entry).decode() for entry in part.entries]
    if not texts:
        return b""
    events = [format_sse_event(data_str=text) for text in texts[:-1]]
    return b"".join([*events, format_sse_event(data_str=texts[-1], id=part.next)])
