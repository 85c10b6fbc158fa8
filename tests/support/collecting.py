"""An HTTP server that records all POST requests."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Posted:
    """A request."""

    path: str
    headers: Message
    body: bytes


class Collector(ThreadingHTTPServer):
    """Records POST requests.

    Attributes:
        posted: The requests in order.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taker)
        self.posted: list[Posted] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Taker(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append(Posted(self.path, self.headers, body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that serves until the block ends."""
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
