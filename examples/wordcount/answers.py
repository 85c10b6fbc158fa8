"""The external system of the example: an HTTP server whose answers change all the time.

``GET /banned?word=rabbit`` answers ``{"answer": "5f3a…-17", "banned": false}``. The list of banned words changes after
a few answers, so a later request gets another verdict, and each answer has its own id.
The server appends each answer to a file *before* it sends it. So a check of the job's output can compare with the
answers that the server sent.

Run it with ``python answers.py --port 8099 --record answers.jsonl``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import signal
import sys
import threading
import zlib
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

ANSWERS_PER_EDITION = 10
"""Number of answers after which the list of banned words is edited."""

BANNED_ONE_IN = 4
"""One word in this number is banned in each edition of the list."""


class BannedWords:
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

    def answer(self, word: str) -> dict[str, object]:
        """An answer for `word`, recorded before it is returned."""
        with self._lock:
            number = self._answers
            self._answers += 1
            edition = f"{self._run}:{number // ANSWERS_PER_EDITION}:{word}"
            banned = zlib.crc32(edition.encode()) % BANNED_ONE_IN == 0
            answer: dict[str, object] = {"answer": f"{self._run}-{number}", "banned": banned}
            # One write call on an unbuffered file: after a kill, each sent answer has a complete line.
            self._file.write(json.dumps({**answer, "word": word}).encode() + b"\n")
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
    server: AnswerServer

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        words = parse_qs(parts.query).get("word", [])
        if parts.path != "/banned" or len(words) != 1:
            self._reply(HTTPStatus.NOT_FOUND, {"error": "use /banned?word=<word>"})
            return
        self._reply(HTTPStatus.OK, self.server.words.answer(words[0]))

    def _reply(self, status: HTTPStatus, content: dict[str, object]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class names it so)
        """Log nothing: the record file is the log."""


class AnswerServer(ThreadingHTTPServer):
    """The HTTP server; a thread for each connection, HTTP/1.1 keep-alive.

    Args:
        record: The file for the answers.
        port: Port to listen on; 0: a free port.
        host: Address to listen on.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, record: Path, port: int = 0, host: str = "127.0.0.1") -> None:
        self.words = BannedWords(record)
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        """The server's URL, without a path."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore closed connections; report other errors."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        """Do nothing: the socket listens since construction."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close socket and file."""
        self.server_close()
        self.words.close()


def main() -> None:
    """Serve until SIGTERM or Ctrl-C; the first line on stdout is the server's address."""
    parser = argparse.ArgumentParser(description="An HTTP server with a list of banned words that keeps changing.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (0: a free port)")
    parser.add_argument("--record", type=Path, default=Path("answers.jsonl"), help="file for the answers")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with AnswerServer(arguments.record, arguments.port, arguments.host) as server:
        print(server.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
