"""The service process: invalid settings, readiness, and shutdown."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from streams import Stream

from clonos.errors import PortInUse, SpecError
from clonos.testing.harness import eventually
from clonos_api.serve import serve, settings_of_environment
from clonos_api.settings import ApiSettings
from support.busy import slowdown
from support.scripted import ScriptedAgent, create
from support.serving import API, ApiProcess, Served


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
def test_shutdown_does_not_wait_for_open_requests(tmp_path: Path, number: signal.Signals) -> None:
    with ApiProcess(tmp_path, reconcile=True) as process:
        api = process.served
        with api.client() as client:
            eventually(lambda: client.get("/health").json()["leader"], "the replica leads")
        assert process.process.stdout is not None
        assert process.process.stdout.readline() == f"ready {api.url}\n"
        with ScriptedAgent(api, "host") as agent:
            agent.register()
            revision = agent.work()["revision"]
            answers: list[int] = []
            poller = threading.Thread(target=lambda: answers.append(agent.work(revision, 20.0)["revision"]))
            poller.start()
            where = httpx.URL(api.url)
            with (
                Stream(api, "/events") as events,
                # An idle connection must not delay the shutdown either.
                socket.create_connection((where.host, where.port or 0)),
            ):
                poller.join(0.5)
                assert poller.is_alive()
                took = process.end(number)
                print(f"exited after {took:.2f} s")
                assert took < 10.0 * slowdown()
                assert process.process.returncode == 0
                assert events.ended.wait(60), "the stream did not end"
            poller.join(60)
            assert answers == [revision], "the long-poll got a response"


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
def test_shutdown_does_not_wait_for_a_client_that_does_not_read(tmp_path: Path, number: signal.Signals) -> None:
    line = "x" * 999 + "\n"
    with ApiProcess(tmp_path, reconcile=True) as process:
        api = process.served
        with ScriptedAgent(api, "host") as agent, api.client() as client:
            create(client, "words")
            agent.register(slots=1)
            assert client.post("/jobs/words/start").status_code == 202
            (run_spec,) = eventually(lambda: agent.work()["runs"], "the job is placed")
            end = 0
            for _ in range(40):
                end = agent.push_log(run_spec["run"], line * 250, end)
            with (
                Stream(api, "/jobs/words/logs", follow="true", tail=0) as reader,
                _silent(api, "/jobs/words/logs?follow=true&tail=10000") as silent,
            ):
                assert silent.recv(1024).startswith(b"HTTP/1.1 200")
                agent.push_log(run_spec["run"], "last\n", end)
                assert reader.next()["data"] == "last", "a client that does not read blocks no other client"
                assert process.end(number) < 10.0 * slowdown()
                assert process.process.returncode == 0
                assert reader.ended.wait(60)
                assert _rest(silent) < 9_000_000, "the response was cut off"


@contextmanager
def _silent(api: Served, path: str) -> Iterator[socket.socket]:
    """A client that sends a request and does not read the response."""
    with socket.socket() as asking:
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        where = httpx.URL(api.url)
        asking.connect((where.host, where.port))
        asking.sendall(
            f"GET {API}{path} HTTP/1.1\r\nHost: {where.host}:{where.port}\r\n"
            f"Authorization: Bearer {api.admin}\r\n\r\n".encode()
        )
        yield asking


def _rest(asking: socket.socket) -> int:
    """Number of bytes until the connection closes."""
    size = 0
    with contextlib.suppress(ConnectionError):
        while piece := asking.recv(1 << 16):
            size += len(piece)
    return size


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("HOST_LEASE_S", "3", "more than three times host_heartbeat_s"), ("PORT", "http", "port")],
)
def test_an_invalid_setting_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv("CLONOS_HOME", str(tmp_path))
    monkeypatch.setenv(f"CLONOS_API__{name}", value)
    with pytest.raises(SpecError, match=message):
        settings_of_environment()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "value", ["canary", '[{"name": "pager", "url": "canary://x", "secret": "canary"}]', '[{"name": "canary canary"}]']
)
def test_wrong_settings_of_webhooks_are_named_without_their_values(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLONOS_HOME", str(tmp_path))
    monkeypatch.setenv("CLONOS_API__WEBHOOKS", value)
    with pytest.raises(SpecError, match="webhooks") as refused:
        settings_of_environment()
    for error in (refused.value, refused.value.__cause__):
        assert "canary" not in str(error)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(PortInUse, match=r"127\.0\.0\.1"):
        serve(ApiSettings(home=tmp_path, port=other.getsockname()[1]))
