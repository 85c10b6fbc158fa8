"""The process itself: what it refuses, how it says that it is ready, and how fast it ends."""

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

from clonos.errors import PortTaken, SpecError
from clonos_api.serve import serve, settings_of_environment
from clonos_api.settings import ApiSettings
from observe import eventually
from scripted import ScriptedAgent, create
from serving import API, ApiProcess, Served


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_time_with_clients_that_wait(tmp_path: Path, number: signal.Signals) -> None:
    with ApiProcess(tmp_path, reconcile=True) as process:
        api = process.served
        with api.client() as client:
            eventually(lambda: client.get("/health").json()["leader"], "it leads")
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
                # A connection that asks for nothing must not hold it up either.
                socket.create_connection((where.host, where.port or 0)),
            ):
                poller.join(0.5)
                assert poller.is_alive()
                took = process.end(number)
                print(f"it ended after {took:.2f} s")
                assert took < 10.0
                assert process.process.returncode == 0
                assert events.ended.wait(2), "the stream did not end"
            poller.join(5)
            assert answers == [revision], "the long-poll was cut off, not answered"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_time_with_a_client_that_does_not_read(tmp_path: Path, number: signal.Signals) -> None:
    line = "x" * 999 + "\n"
    with ApiProcess(tmp_path, reconcile=True) as process:
        api = process.served
        with ScriptedAgent(api, "host") as agent, api.client() as client:
            create(client, "words")
            agent.register(slots=1)
            assert client.post("/jobs/words/start").status_code == 202
            (order,) = eventually(lambda: agent.work()["runs"], "the job is placed")
            end = 0
            for _ in range(40):
                end = agent.log(order["run"], line * 250, end)
            with (
                Stream(api, "/jobs/words/logs", follow="true", tail=0) as reader,
                _silent(api, "/jobs/words/logs?follow=true&tail=10000") as silent,
            ):
                assert silent.recv(1024).startswith(b"HTTP/1.1 200")
                agent.log(order["run"], "last\n", end)
                assert reader.next()["data"] == "last", "one that does not read holds up nobody"
                assert process.end(number) < 3.0
                assert process.process.returncode == 0
                assert reader.ended.wait(2)
                assert _rest(silent) < 9_000_000, "it had all before the end: nothing was held up"


@contextmanager
def _silent(api: Served, path: str) -> Iterator[socket.socket]:
    """Somebody who asks, and does not read the answer."""
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
    """How much comes until the other side is gone."""
    found = 0
    with contextlib.suppress(ConnectionError):
        while piece := asking.recv(1 << 16):
            found += len(piece)
    return found


def test_the_first_token_is_for_nobody_else_to_read(tmp_path: Path) -> None:
    with ApiProcess(tmp_path) as process:
        file = process.settings.admin_token_file
        assert file.stat().st_mode & 0o077 == 0
        token = process.served.admin
        process.end()
    with ApiProcess(tmp_path) as process:
        assert process.served.admin == token
        with process.served.client() as client:
            assert client.get("/tokens/self").json()["role"] == "admin"


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"host": "0.0.0.0"}, "TLS"),
        ({"host": "::"}, "TLS"),
        ({"host": "example.org"}, "TLS"),
        ({"host": "0.0.0.0", "auth": False, "tls_cert": "a", "tls_key": "b"}, "tokens"),
        ({"tls_cert": "a"}, "its key"),
    ],
)
def test_open_addresses_need_tokens_and_tls(tmp_path: Path, settings: dict[str, object], missing: str) -> None:
    with pytest.raises(SpecError, match=missing):
        serve(ApiSettings(home=tmp_path, **settings))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [("AGENT_LEASE_S", "3", "more than three times agent_heartbeat_s"), ("PORT", "http", "port")],
)
def test_settings_that_cannot_be_used_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, told: str
) -> None:
    monkeypatch.setenv("CLONOS_HOME", str(tmp_path))
    monkeypatch.setenv(f"CLONOS_API__{name}", value)
    with pytest.raises(SpecError, match=told):
        settings_of_environment()
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(PortTaken, match=r"127\.0\.0\.1"):
        serve(ApiSettings(home=tmp_path, port=other.getsockname()[1]))
