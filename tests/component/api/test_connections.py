"""Connections before a token is known: endless headers and trailers, pipelined requests, bodies of refused requests,
slow headers, and many connections of one address."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

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
    size, more = 0, scope["path"] != "/refused"
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


CHUNKED = b"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "a header": (b"GET / HTTP/1.1\r\nX: ", b"x" * 64_000),
    "a first line": (b"GET /", b"x" * 64_000),
    "a method": (b"", b"G" * 64_000),
    "blank lines": (b"", b"\r\n" * 32_000),
    "pipelined requests": (b"", b"GET / HTTP/1.1\r\nHost:x\r\n\r\n" * 2_000),
    "pipelined requests with bodies": (b"", b"POST / HTTP/1.1\r\nHost:x\r\nContent-Length:1\r\n\r\nx" * 1_500),
} | {
    f"{name}, {path.decode()}": (CHUNKED % path + before, piece)
    for path in (b"/", b"/refused")
    for name, before, piece in (
        ("trailers", b"0\r\n", b"a:b\r\n" * 12_000),
        ("one trailer", b"0\r\nX: ", b"x" * 64_000),
        ("the name of a trailer", b"1\r\nx\r\n0\r\n", b"x" * 64_000),
        ("a chunk extension", b"5;a=", b"x" * 64_000),
        ("extensions of all chunks", b"", b"1;a=%s\r\nx\r\n" % (b"y" * 50) * 1_000),
        ("the size of a chunk", b"", b"0" * 64_000),
        ("chunks of one byte", b"", b"1\r\nx\r\n" * 10_000),
    )
}
ENDLESS["a refused body"] = (b"POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000000\r\n\r\n", b"x" * 64_000)
ENDLESS["a refused body in chunks"] = (CHUNKED % b"/refused", b"ffff\r\n" + b"x" * 65_535 + b"\r\n")


@pytest.fixture(scope="module")
def process() -> Iterator[tuple[int, int]]:
    """The process and the port of a server with the limits of the product."""
    code = (
        f"import socket, sys, uvicorn; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from clonos_api.http.limited_protocol import LimitedProtocol\n"
        f"from {Path(__file__).stem} import app\n"
        "LimitedProtocol.refused_s = 0.1\n"
        "listening = socket.create_server(('127.0.0.1', 0))\n"
        "config = uvicorn.Config(app, http=LimitedProtocol, log_config=None, lifespan='off', ws='none')\n"
        "print(listening.getsockname()[1], flush=True)\n"
        "uvicorn.Server(config).run(sockets=[listening])\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.pid, int(server.stdout.readline())
        server.terminate()


@pytest.mark.parametrize("spelling", ENDLESS)
def test_no_request_without_an_end_takes_memory_or_the_time_of_others(process: tuple[int, int], spelling: str) -> None:
    pid, port = process
    resident_mb, slowest_s = resident(pid), 0.0
    before, piece = ENDLESS[spelling]
    sent, until = 0, time.monotonic() + 20
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(before)
        while time.monotonic() < until:
            connection.sendall(piece)
            sent += len(piece)
            if sent % (50 * len(piece)) == 0:
                begun = time.monotonic()
                httpx.get(f"http://127.0.0.1:{port}/", timeout=20, trust_env=False)
                slowest_s = max(slowest_s, time.monotonic() - begun)
    assert time.monotonic() < until, f"the connection is still open after {sent} bytes"
    assert resident(pid) - resident_mb < 20
    assert slowest_s < 2


def resident(pid: int) -> float:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * 4_096 / 1e6


def test_a_refused_request_has_its_response_and_then_the_connection_is_closed(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(b"POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nx")
        received = answer(connection)
    assert received.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in received


def test_a_connection_outlives_refused_requests_with_short_bodies(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=20) as connection:
        for _ in range(3):
            connection.sendall(b"POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
            assert b"connection: close" not in connection.recv(65_536)
            connection.sendall(b"x" * 1000)


def test_the_rest_of_a_short_body_has_a_time_limit() -> None:
    with listening_with(Impatient) as address, socket.create_connection(address, timeout=60) as connection:
        connection.sendall(b"POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nx")
        assert answer(connection).startswith(b"HTTP/1.1 200")


def test_some_requests_are_pipelined_and_trailers_are_ignored(address: tuple[str, int]) -> None:
    request = CHUNKED % b"/" + b"3\r\nabc\r\n0\r\nX-Trailer: 1\r\n\r\n"
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(request * 5 + b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert answer(connection).count(b"HTTP/1.1 200") == 6


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
