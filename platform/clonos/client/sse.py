"""Follows a stream of server-sent events and reconnects where the stream broke off.

httpx-sse parses the stream. Its line decoder splits only at CR, LF and CRLF, as the HTML standard has it;
httpx's own ``iter_lines`` also splits at U+2028 and other Unicode line breaks, which occur in log lines.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Final

import httpx
from httpx_sse import ServerSentEvent, SSEError

from clonos.client.responses import Backoff
from clonos.client.transport import Params, Transport
from clonos.errors import ApiError
from clonos.resources.service import HEARTBEAT

# The server sends a heartbeat every fifteen seconds.
_READ_TIMEOUT_S: Final = 60.0


def follow(
    transport: Transport,
    path: str,
    params: Params,
    *,
    last_id: str | None = None,
    is_complete: Callable[[], bool] = lambda: False,
    stop: threading.Event | None = None,
    on_disconnect: Callable[[], None] = lambda: None,
    read_timeout_s: float = _READ_TIMEOUT_S,
) -> Iterator[ServerSentEvent]:
    """Yield the events of a stream; after a lost connection, resume after the last complete event.

    An event without an id has the id of the newest earlier event with an id on the same connection, or an empty id. The
    first event follows the one with `last_id`. `is_complete` is asked at each heartbeat, and when the server closes the
    stream; True ends the iteration. `stop`, set in another thread, ends it too. A connection without an event or
    heartbeat for `read_timeout_s` is lost; `on_disconnect` is called before each reconnection.

    Raises:
        ApiError: The response is not an event stream.
        ClonosError: The server refused the request.
    """
    stop = stop or threading.Event()
    backoff = Backoff(first_s=0.2, longest_s=5.0)
    while not stop.is_set():
        headers = {"Last-Event-ID": last_id} if last_id is not None else {}
        try:
            with transport.stream(path, params, headers, read_timeout_s=read_timeout_s) as events:
                for event in events:
                    backoff.reset()
                    last_id = event.id or last_id
                    if event.event != HEARTBEAT:
                        yield event
                    if stop.is_set() or (event.event == HEARTBEAT and is_complete()):
                        return
            if is_complete():
                return
        except SSEError as error:
            raise ApiError(f"{transport.api} did not answer with an event stream: {error}.") from error
        except httpx.TransportError:
            pass
        on_disconnect()
        stop.wait(backoff.next_s())
