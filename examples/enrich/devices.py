"""The outside world of the example: a flaky HTTP server that knows devices and keeps moving them.

``GET /device?id=d07`` answers ``{"answer": "5f3a…-17", "site": "north-3"}``. Devices move after every few answers, so
asking again later gives another site, and no two answers share an id. Some calls get status 503, some an answer that
comes too late for anybody to wait for; devices that are not called ``d…`` get status 404, always.
Every answer, whatever its status, is appended to a file *before* it is sent; whoever checks the job's output later
can tell from that file alone which answers were really given.

Run it by itself with ``python devices.py --port 8099 --record answers.jsonl``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import secrets
import signal
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

ANSWERS_PER_MOVE = 10
FAILING_SHARE = 0.04
SLOW_SHARE = 0.02
SLOW_S = 1.2
SITES = ("north", "east", "south", "west")


class Devices:
    """Gives answers and writes each one down first.

    Args:
        record: The file that answers are appended to, one JSON object a line.
    """

    def __init__(self, record: Path) -> None:
        self._lock = threading.Lock()
        self._given = 0
        # Ids stay unique when the server is started again on the same file.
        self._run = secrets.token_hex(4)
        self._file = record.open("ab", buffering=0)

    def answer(self, device: str) -> dict[str, Any]:
        """One answer about `device`, recorded before it is returned."""
        with self._lock:
            number = self._given
            self._given += 1
            given: dict[str, Any] = {"answer": f"{self._run}-{number}", "device": device, "slow": False}
            if not device.startswith("d"):
                given["status"] = HTTPStatus.NOT_FOUND
            elif random.random() < FAILING_SHARE:
                given["status"] = HTTPStatus.SERVICE_UNAVAILABLE
            else:
                move = zlib.crc32(f"{self._run}:{number // ANSWERS_PER_MOVE}:{device}".encode())
                site = f"{SITES[move % len(SITES)]}-{move // len(SITES) % 10}"
                given |= {"status": HTTPStatus.OK, "site": site, "slow": random.random() < SLOW_SHARE}
            # One write call on an unbuffered file: a killed server leaves no half line of an answer it sent.
            self._file.write(json.dumps(given).encode() + b"\n")
            return given

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Header and body leave in one packet; otherwise Nagle and delayed ACKs cost 40 ms an answer.
    wbufsize = -1
    disable_nagle_algorithm = True
    timeout = 30
    server: DeviceServer

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        asked = parse_qs(parts.query).get("id", [])
        if parts.path != "/device" or len(asked) != 1:
            self._reply(HTTPStatus.BAD_REQUEST, {"error": "ask for /device?id=<device>"})
            return
        given = self.server.devices.answer(asked[0])
        if given["slow"]:
            time.sleep(SLOW_S)
        self._reply(given["status"], {name: given[name] for name in ("answer", "site") if name in given})

    def _reply(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class names it so)
        """Say nothing: the record file is the log."""


class DeviceServer(ThreadingHTTPServer):
    """The HTTP server; a thread for each connection, HTTP/1.1 keep-alive.

    Args:
        record: The file that answers are appended to.
        port: Port to listen on; 0 takes a free one.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, record: Path, port: int = 0) -> None:
        self.devices = Devices(record)
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that were killed or hung up in mid-sentence; report anything else."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextlib.contextmanager
def serving(record: Path, port: int = 0) -> Iterator[DeviceServer]:
    """A server that listens, and what it writes to."""
    with DeviceServer(record, port) as server:
        try:
            yield server
        finally:
            server.devices.close()


def main() -> None:
    """Serve until SIGTERM or Ctrl-C; the first line on stdout is the server's address."""
    parser = argparse.ArgumentParser(description="A flaky HTTP server that knows devices and keeps moving them.")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (0: a free one)")
    parser.add_argument("--record", type=Path, default=Path("answers.jsonl"), help="file that answers are appended to")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with serving(arguments.record, arguments.port) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
