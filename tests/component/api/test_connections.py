"""Connections before a token is known: endless headers, slow headers, and many connections of one address."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from clonos.testing.harness import eventually
from clonos_api.http.limited_protocol import LimitedProtocol, is_within

Connect = Callable[[], socket.socket]


class Strict(LimitedProtocol):
    header_bytes = 10_000
    header_s = 60.0
    per_address = 20


class Impatient(Strict):
    header_s = 1.0


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        return
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(str(size)))]})
    await send({"type": "http.response.body", "body": str(size).encode()})


class BehindProxy(Strict):
    proxies = (ipaddress.ip_network("127.0.0.0/8"),)


@contextlib.contextmanager
def listening_with(protocol: type[LimitedProtocol]) -> Iterator[tuple[str, int]]:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, http=protocol, log_config=None, lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    eventually(lambda: server.started, "the server starts")
    yield listening.getsockname()
    server.should_exit = True
    thread.join(30)


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    with listening_with(Strict) as listening_at:
        yield listening_at


@pytest.fixture
def connect(address: tuple[str, int]) -> Iterator[Connect]:
    with contextlib.ExitStack() as opened:
        yield lambda: opened.enter_context(socket.create_connection(address, timeout=60))
    eventually(lambda: not Strict._opened, "the connections are closed")


def answer(connection: socket.socket) -> bytes:
    """All bytes until the server closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65_536):
            received += piece
    return received


def test_an_endless_header_is_refused(connect: Connect) -> None:
    connection = connect()
    connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Endless: ")
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < 50_000_000:
            connection.sendall(b"x" * 10_000)
            sent += 10_000
    assert sent < 10_000_000, "the server reads no more than its buffers hold"
    assert answer(connection)[:12] in (b"HTTP/1.1 431", b"")  # empty: bytes that the server did not read


def test_a_slow_head_and_an_idle_connection_end() -> None:
    with listening_with(Impatient) as address, contextlib.ExitStack() as opened:
        idle, slow = (opened.enter_context(socket.create_connection(address, timeout=60)) for _ in range(2))
        slow.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        assert answer(idle) == answer(slow) == b""


def test_requests_on_one_connection_have_heads_of_their_own(address: tuple[str, int]) -> None:
    with httpx.Client(
        base_url=f"http://{address[0]}:{address[1]}", trust_env=False, verify=False, timeout=60
    ) as client:
        for number in range(30):
            assert client.post("/", content=b"y" * 100_000, headers={"X-Filler": "f" * 900}).text == "100000", number
        assert client.get("/", headers={"X-Large": "l" * 9_000}).status_code == 200


def test_one_address_has_some_connections(connect: Connect) -> None:
    opened = [connect() for _ in range(20)]
    assert answer(connect()) == b"", "it is closed at once"
    opened[0].sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer(opened[0]).startswith(b"HTTP/1.1 200")


def test_a_trusted_proxy_has_connections_for_many_clients() -> None:
    with listening_with(BehindProxy) as proxied, contextlib.ExitStack() as opened:
        connections = [opened.enter_context(socket.create_connection(proxied, timeout=60)) for _ in range(25)]
        for connection in connections:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert all(answer(connection).startswith(b"HTTP/1.1 200") for connection in connections)
    eventually(lambda: not Strict._opened, "the connections are closed")


def test_an_address_is_within_a_network_in_each_spelling() -> None:
    networks = [ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("2001:db8::/32")]
    assert all(is_within(address, networks) for address in ("10.1.2.3", "::ffff:10.1.2.3", "2001:db8::1"))
    assert not any(is_within(address, networks) for address in ("10.2.0.1", "2001:db9::1", "", "a name"))
