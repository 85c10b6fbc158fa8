"""Server-sent events: how they are written, and the response that sends them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import StreamingResponse

HEARTBEAT: Final = b": alive\n\n"
MEDIA_TYPE: Final = "text/event-stream"


def encode(data: str, *, event: str | None = None, number: str | int | None = None) -> bytes:
    """One event. `data` may have several lines; `event` and `number`, its id, must not."""
    lines = []
    if number is not None:
        lines.append(f"id: {number}")
    if event is not None:
        lines.append(f"event: {event}")
    # The three ends of line that the format knows, and no others (str.splitlines knows more).
    lines += [f"data: {line}" for line in data.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    return ("\n".join(lines) + "\n\n").encode()


class EventStream(StreamingResponse):
    """A response that goes on until the client or the service ends it."""

    media_type = MEDIA_TYPE

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        # Proxies must not keep events to themselves.
        super().__init__(chunks, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
