"""The response of routes that stream server-sent events; FastAPI's `format_sse_event` encodes the events.

Why not sse-starlette: docs/adr/0018.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from fastapi.sse import format_sse_event
from starlette.responses import StreamingResponse

from clonos.resources.service import HEARTBEAT

MEDIA_TYPE: Final = "text/event-stream"
# An event without data: browsers ignore it, `clonos.client` sees that the connection is alive.
HEARTBEAT_EVENT: Final = format_sse_event(event=HEARTBEAT)


class EventStream(StreamingResponse):
    """A stream of encoded events that lasts until the client disconnects or `chunks` is exhausted."""

    media_type = MEDIA_TYPE

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        # `X-Accel-Buffering: no` keeps proxies from collecting events before they pass them on.
        super().__init__(chunks, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
