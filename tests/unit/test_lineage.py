"""Lineage: one run for each driver process, from what it reads to what it writes, and how it ended."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pydantic import SecretStr

from clonos.errors import SpecError
from clonos.lineage import lineage
from clonos.settings import LineageSettings
from observe import eventually

AT = 1_767_268_800.0


class Backend(ThreadingHTTPServer):
    """Takes what is sent to it."""

    def __init__(self, status: int = 201) -> None:
        super().__init__(("127.0.0.1", 0), _Taker)
        self.status = status
        self.taken: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()

    @property
    def settings(self) -> LineageSettings:
        return LineageSettings(url=f"http://127.0.0.1:{self.server_port}", api_key=SecretStr("k"))


class _Taker(BaseHTTPRequestHandler):
    server: Backend

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/api/v1/lineage"
        self.server.taken.append(body)
        self.server.keys.add(self.headers.get("Authorization"))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def backend() -> Iterator[Backend]:
    with Backend() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def state(name: str) -> dict[str, Any]:
    return {"event": "state", "state": name, "at": AT}


@pytest.mark.parametrize(
    ("end", "said"),
    [("stopped", "COMPLETE"), ("finished", "COMPLETE"), ("superseded", "ABORT"), ("failed", "FAIL")],
)
def test_a_run(backend: Backend, end: str, said: str) -> None:
    with lineage("orders", backend.settings) as flows:
        assert flows is not None
        flows.flows("broker:9092", {"in-b", "in-a"}, {"out"})
        for one in ("CLAIMING", "RUNNING", "RESTARTING", "RUNNING"):
            flows.take(state(one))
        flows.take({"event": end, "what": "It broke." if end == "failed" else None, "at": AT + 5})
        flows.take({"event": "summary", "at": AT + 5})
    eventually(lambda: len(backend.taken) == 2, "it is told")
    begun, ended = backend.taken
    assert (begun["eventType"], ended["eventType"]) == ("START", said)
    assert begun["run"]["runId"] == ended["run"]["runId"]
    assert (ended["job"]["namespace"], ended["job"]["name"]) == ("clonos", "orders")
    assert begun["eventTime"].startswith("2026-01-01T12:00:00")
    topics = [(one["namespace"], one["name"]) for one in begun["inputs"]]
    assert topics == [("kafka://broker:9092", "in-a"), ("kafka://broker:9092", "in-b")]
    assert [one["name"] for one in begun["outputs"]] == ["out"]
    failure = ended["run"].get("facets", {}).get("errorMessage", {}).get("message")
    assert failure == ("It broke." if end == "failed" else None)
    assert backend.keys == {"Bearer k"}


def test_a_standby_that_never_ran_is_no_run(backend: Backend) -> None:
    with lineage("orders", backend.settings) as flows:
        assert flows is not None
        flows.take(state("CLAIMING"))
        flows.take({"event": "failed", "what": "x", "at": AT})
    assert backend.taken == []


def test_nobody_there_fails_nothing() -> None:
    with lineage("orders", LineageSettings(url="http://127.0.0.1:1", timeout_s=0.2)) as flows:
        assert flows is not None
        flows.take(state("RUNNING"))


def test_off_unless_it_is_asked_for() -> None:
    with lineage("orders", LineageSettings()) as flows:
        assert flows is None


def test_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    with pytest.raises(SpecError, match="is not installed") as raised, lineage("x", LineageSettings(url="http://a")):
        pass
    assert "clonos[lineage]" in raised.value.hint
