"""A client of server-sent events."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
from typing import Any

import httpx

from support.serving import Served


class Stream:
    """A stream that a thread reads, so that a test can wait for events with a timeout."""

    def __init__(
        self, served: Served, path: str, *, last_event_id: str | None = None, token: str | None = None, **query: Any
    ) -> None:
        self.events: queue.Queue[dict[str, str]] = queue.Queue()
        self.ended = threading.Event()
        self.alive = threading.Event()
        self._client = served.client(token)
        self._headers = {"Last-Event-ID": last_event_id} if last_event_id is not None else {}
        self._query = {name: value for name, value in query.items() if value is not None}
        self._path = path
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._read, name="stream")

    def __enter__(self) -> Stream:
        self._thread.start()
        assert self.alive.wait(60), "the stream did not open"
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the reader, which closing does not
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._client.close()

    def next(self, timeout_s: float = 60.0) -> dict[str, str]:
        """The next event: ``id``, ``event``, ``data``."""
        return self.events.get(timeout=timeout_s)

    def take(self, count: int) -> list[dict[str, Any]]:
        """The data of the next `count` events."""
        return [json.loads(self.next()["data"]) for _ in range(count)]

    def _read(self) -> None:
        try:
            with self._client.stream(
                "GET", self._path, params=self._query, headers=self._headers, timeout=30
            ) as answer:
                assert answer.status_code == 200, answer.read()
                assert answer.headers["content-type"].startswith("text/event-stream")
                self._socket = answer.extensions["network_stream"].get_extra_info("socket")
                event: dict[str, str] = {}
                for line in answer.iter_lines():
                    self.alive.set()
                    if not line:
                        if "data" in event:
                            self.events.put(event)
                        event = {}
                    elif not line.startswith(":"):
                        name, _, value = line.partition(": ")
                        event[name] = f"{event[name]}\n{value}" if name in event else value
        except (httpx.HTTPError, httpx.StreamError, RuntimeError):
            pass  # the test closed the client, or the service ended
        finally:
            self.ended.set()
