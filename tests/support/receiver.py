"""A receiver of webhooks: an HTTP server that records requests."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = bytes(range(32))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


@dataclass
class Received:
    """One request."""

    id: str
    signed: bool
    host: str
    path: str
    body: dict[str, Any]

    @property
    def alert(self) -> tuple[str, str]:
        """The name and status of its alert."""
        (alert,) = self.body["alerts"]
        assert alert["status"] == self.body["status"]
        return alert["labels"]["alertname"], alert["status"]


@dataclass
class Receiver:
    """Records requests, and answers with the next of `statuses`, then with 200."""

    requests: list[Received] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    url: str = ""

    def alerts(self) -> list[tuple[str, str]]:
        """Names and statuses of the alerts, in the order of their arrival."""
        return [request.alert for request in self.requests]


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """A receiver on a free port of 127.0.0.1."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            id, sent_at = self.headers["webhook-id"], self.headers["webhook-timestamp"]
            expected = hmac.new(KEY, f"{id}.{sent_at}.".encode() + body, hashlib.sha256).digest()
            signed = self.headers["webhook-signature"] == "v1," + base64.b64encode(expected).decode()
            receiver.requests.append(Received(id, signed, self.headers["Host"], self.path, json.loads(body)))
            status = receiver.statuses.pop(0) if receiver.statuses else 200
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", f"{receiver.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)
