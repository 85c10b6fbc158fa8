"""Server-sent events: read as they come, taken up again after each break where they stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import httpx

from clonos.client.transport import Params, Transport

_FIRST_WAIT_S: Final = 0.2
_LONGEST_WAIT_S: Final = 5.0
# The server shows that it lives every fifteen seconds.
_SILENCE_S: Final = 60.0


@dataclass(frozen=True)
class ServerEvent:
    """One event.

    Attributes:
        id: Where to go on after it.
        placed: Whether it came with an id of its own.
        event: Its type.
    """

    id: str | None
    event: str
    data: str
    placed: bool = False


@dataclass
class Parser:
    """Lines to events, as the HTML standard has it.

    Attributes:
        id: Of the newest event that is whole; one that was only begun does not count.
        retry_s: How long to wait before the next connection, where the server says so.
    """

    id: str | None = None
    retry_s: float | None = None
    _event: str = ""
    _id: str | None = None
    _data: list[str] = field(default_factory=list)

    def take(self, line: str) -> ServerEvent | None:
        """Take in one line, without its end; an empty one ends an event."""
        if not line:
            return self._end()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isdigit():
            self.retry_s = int(value) / 1000
        return None

    def _end(self) -> ServerEvent | None:
        data, event, own = self._data, self._event, self._id
        self._data, self._event, self._id = [], "", None
        self.id = own if own is not None else self.id
        return ServerEvent(self.id, event or "message", "\n".join(data), own is not None) if data else None


def follow(
    transport: Transport,
    path: str,
    params: Params,
    *,
    last_id: str | None = None,
    go_on: Callable[[], bool] = lambda: True,
    stop: threading.Event | None = None,
    on_break: Callable[[], None] = lambda: None,
    silence_s: float = _SILENCE_S,
) -> Iterator[ServerEvent]:
    """Events of a stream for as long as it goes on.

    Args:
        transport: Who asks.
        path: Of the stream.
        params: Of the stream.
        last_id: Start after this one.
        go_on: Asked whenever the server ended the stream, or only says that it lives: whether there may be more.
        stop: Ends the stream from elsewhere, at the next event or break.
        on_break: Told of each connection that ended.
        silence_s: A connection on which nothing comes for so long is lost.

    Raises:
        ClonosError: The server refused.
    """
    stop = stop or threading.Event()
    parser = Parser(last_id)
    wait_s = _FIRST_WAIT_S
    while not stop.is_set():
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": parser.id} if parser.id is not None else {})}
        try:
            with transport.stream(path, params, headers, read_s=silence_s) as lines:
                for line in lines:
                    wait_s = parser.retry_s or _FIRST_WAIT_S
                    event = parser.take(line)
                    if event is not None:
                        yield event
                    if stop.is_set() or (line.startswith(":") and not go_on()):
                        return
            if not go_on():
                return
        except httpx.TransportError:
            pass
        on_break()
        # A half-told event comes again with the next connection.
        parser = Parser(parser.id, parser.retry_s)
        stop.wait(wait_s)
        wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
