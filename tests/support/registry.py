"""A stub Schema Registry over HTTP: the part of the protocol that Clonos uses, with switches for failures.

The GUID of a schema has its id as number.
"""

from __future__ import annotations

import base64
import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class _Answer(Exception):
    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error_code": code, "message": message}


class StubRegistry:
    """Schemas by id and by subject, behind basic authentication.

    Attributes:
        down: Number of the next requests that get 503; -1: all.
        requests: Method and path of every request.
    """

    def __init__(self, username: str, password: str) -> None:
        self.down = 0
        self.requests: list[str] = []
        self._authorization = "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()
        self._schemas: list[dict[str, Any]] = []
        self._subjects: dict[str, list[int]] = {}
        self._lock = threading.Lock()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._serve({})

            def do_POST(self) -> None:
                self._serve(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _serve(self, body: dict[str, Any]) -> None:
                status, answer = stub.answer(self.command, self.path, self.headers.get("Authorization", ""), body)
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def serving(self) -> Iterator[StubRegistry]:
        """Serve until the block ends."""
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def register(self, subject: str, text: str, kind: str = "AVRO") -> int:
        """Register a schema as another producer does."""
        answer: dict[str, Any] = self._register(subject, {"schema": text, "schemaType": kind})
        return int(answer["id"])

    def answer(self, method: str, path: str, authorization: str, body: dict[str, Any]) -> tuple[int, Any]:
        with self._lock:
            self.requests.append(f"{method} {path}")
            try:
                if self.down:
                    self.down -= 1 if self.down > 0 else 0
                    raise _Answer(503, 50003, "down")
                if authorization != self._authorization:
                    raise _Answer(401, 401, "Unauthorized")
                return 200, self._route(method, path, body)
            except _Answer as answer:
                return answer.status, answer.body

    def _route(self, method: str, path: str, body: dict[str, Any]) -> Any:
        url = urlsplit(path)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        match [method, *parts]:
            case ["GET", "schemas", "guids", guid]:
                return self._route(method, f"/schemas/ids/{uuid.UUID(guid).int}", body)
            case ["GET", "schemas", "ids", number]:
                index = int(number) - 1
                if not 0 <= index < len(self._schemas):
                    raise _Answer(404, 40403, f"Schema {number} not found")
                schema = self._schemas[index]
                if schema.get("schemaType") == "PROTOBUF" and parse_qs(url.query).get("format") != ["serialized"]:
                    return {**schema, "schema": "message text, which Clonos does not read"}
                return schema
            case ["POST", "subjects", subject, "versions"]:
                return {"id": self._register(subject, body)["id"]}
            case ["POST", "subjects", subject]:
                if self._find(subject, body) is None:
                    raise _Answer(404, 40403, "Schema not found")
                return self._register(subject, body)
            case ["GET", "subjects", subject, "versions", version]:
                numbers = self._subjects.get(subject)
                if numbers is None:
                    raise _Answer(404, 40401, f"Subject {subject!r} not found.")
                place = len(numbers) if version == "latest" else int(version)
                if not 0 < place <= len(numbers):
                    raise _Answer(404, 40402, f"Version {version} not found.")
                return self._version(subject, place)
        raise _Answer(404, 404, "HTTP 404 Not Found")

    def _find(self, subject: str, body: dict[str, Any]) -> int | None:
        schema = self._normal(body)
        return next((n for n in self._subjects.get(subject, ()) if self._schemas[n - 1] == schema), None)

    def _register(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        schema = self._normal(body)
        if schema.get("schemaType", "AVRO") == "AVRO" and not isinstance(json.loads(schema["schema"]), dict):
            raise _Answer(422, 42201, "Invalid schema")
        if schema not in self._schemas:
            self._schemas.append(schema)
        number = self._schemas.index(schema) + 1
        versions = self._subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return self._version(subject, versions.index(number) + 1)

    def _version(self, subject: str, place: int) -> dict[str, Any]:
        number = self._subjects[subject][place - 1]
        return {"subject": subject, "version": place, "id": number, **self._schemas[number - 1]}

    def _normal(self, body: dict[str, Any]) -> dict[str, Any]:
        schema = {key: body[key] for key in ("schema", "schemaType", "references") if body.get(key)}
        if schema.get("schemaType") == "AVRO":
            del schema["schemaType"]  # as the real registry does
        return schema
