"""The external system of the example: an unreliable HTTP server with the current sites of devices.

``GET /device?id=d07`` answers ``{"answer": "5f3a…-17", "site": "north-3"}``. Devices move after a few answers, so a
later request gets another site, and each answer has its own id. Some requests get status 503, some get an answer after
the client's timeout. Devices whose name does not start with ``d`` always get status 404.
The server appends each answer, with its status, to a file *before* it sends it. So a check of the job's output can
compare with the answers that the server sent.

Run it with ``python devices.py --port 8099 --record answers.jsonl``.
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
    """Answers requests, and appends each answer to a file first.

    Args:
        record: The file for the answers, one JSON object per line.
    """

    def __init__(self, record: Path) -> None:
        self._lock = threading.Lock()
        self._answers = 0
        # Ids are unique also after a restart of the server with the same file.
        self._run = secrets.token_hex(4)
        self._file = record.open("ab", buffering=0)

    def answer(self, device: str) -> dict[str, Any]:
        """An answer about `device`, recorded before it is returned."""
        with self._lock:
            number = self._answers
            self._answers += 1
            answer: dict[str, Any] = {"answer": f"{self._run}-{number}", "device": device, "slow": False}
            if not device.startswith("d"):
                answer["status"] = HTTPStatus.NOT_FOUND
            elif random.random() < FAILING_SHARE:
                answer["status"] = HTTPStatus.SERVICE_UNAVAILABLE
            else:
                move = zlib.crc32(f"{self._run}:{number // ANSWERS_PER_MOVE}:{device}".encode())
                site = f"{SITES[move % len(SITES)]}-{move // len(SITES) % 10}"
                answer |= {"status": HTTPStatus.OK, "site": site, "slow": random.random() < SLOW_SHARE}
            # One write call on an unbuffered file: after a kill, each sent answer has a complete line.
            self._file.write(json.dumps(answer).encode() + b"\n")
            return answer

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Header and body are sent in one packet; otherwise Nagle and delayed ACKs cost 40 ms per answer.
    wbufsize = -1
    disable_nagle_algorithm = True
    timeout = 30
    server: DeviceServer

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        ids = parse_qs(parts.query).get("id", [])
        if parts.path != "/device" or len(ids) != 1:
            self._reply(HTTPStatus.BAD_REQUEST, {"error": "use /device?id=<device>"})
            return
        answer = self.server.devices.answer(ids[0])
        if answer["slow"]:
            time.sleep(SLOW_S)
        self._reply(answer["status"], {name: answer[name] for name in ("answer", "site") if name in answer})

    def _reply(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class names it so)
        """Log nothing: the record file is the log."""


class DeviceServer(ThreadingHTTPServer):
    """The HTTP server; a thread for each connection, HTTP/1.1 keep-alive.

    Args:
        record: The file for the answers.
        port: Port to listen on; 0: a free port.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, record: Path, port: int = 0) -> None:
        self.devices = Devices(record)
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore closed connections; report other errors."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextlib.contextmanager
def serving(record: Path, port: int = 0) -> Iterator[DeviceServer]:
    """A listening server; closes its file at the end."""
    with DeviceServer(record, port) as server:
        try:
            yield server
        finally:
            server.devices.close()


def main() -> None:
    """Serve until SIGTERM or Ctrl-C; the first line on stdout is the server's address."""
    parser = argparse.ArgumentParser(description="An unreliable HTTP server with the current sites of devices.")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (0: a free port)")
    parser.add_argument("--record", type=Path, default=Path("answers.jsonl"), help="file for the answers")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with serving(arguments.record, arguments.port) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
