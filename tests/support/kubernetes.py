"""A stand-in for Kubernetes' API server: it acknowledges what Spark creates, and starts nothing."""

from __future__ import annotations

import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


class StubKubernetes:
    """The server.

    Attributes:
        created: The bodies of the resources that were created.
        requests: Verb and kind of resource of each request, as in a role.
    """

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.requests: set[tuple[str, str]] = set()
        self._ended = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def master(self) -> str:
        """The master of a cluster file."""
        return f"k8s://http://127.0.0.1:{self._server.server_port}"

    def pods(self) -> list[dict[str, Any]]:
        """The pods that were created."""
        return [resource for resource in self.created if resource["kind"] == "Pod"]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                kind, name, query = self._target()
                stub.requests.add(("watch" if "watch" in query else "get" if name else "list", kind))
                if "upgrade" in self.headers:
                    self._answer({})  # Spark's client then watches over plain HTTP
                elif "watch" in query:
                    self._watch()
                elif name:
                    meta = {"name": name, "uid": "1", "labels": {}, "resourceVersion": "1"}
                    self._answer({"kind": "Pod", "apiVersion": "v1", "metadata": meta, "status": {"phase": "Running"}})
                else:
                    self._answer(
                        {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}
                    )

            def _target(self) -> tuple[str, str, dict[str, list[str]]]:
                """The kind of resource, its name, and the query of ``/api/v1/namespaces/NAMESPACE/KIND/NAME?QUERY``."""
                url = urlsplit(self.path)
                *_, kind, name = [*url.path.split("/"), ""][5:7]
                return kind, name, parse_qs(url.query)

            def _watch(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.flush()
                stub._ended.wait()
                self.close_connection = True

            def do_POST(self) -> None:
                stub.requests.add(("create", self._target()[0]))
                resource = json.loads(self._body())
                stub.created.append(resource)
                meta = {**resource["metadata"], "uid": str(uuid.uuid4()), "resourceVersion": "2"}
                self._answer({**resource, "metadata": meta}, 201)

            def do_DELETE(self) -> None:
                kind, name, _ = self._target()
                stub.requests.add(("delete" if name else "deletecollection", kind))
                self._body()
                self._answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})

            def _body(self) -> bytes:
                return self.rfile.read(int(self.headers.get("Content-Length", "0")))

            def _answer(self, body: dict[str, Any], status: int = 200) -> None:
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
