"""Callers of the control plane: ordinary ones, and a hostile one that sends as much as its token lets it.

`bench.hostile_caller` measures the ordinary ones beside the hostile one; a component test checks that they are served.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from support.connection import Connection
from support.scripted import CODE, spec

_GONE: Final = (OSError, asyncio.IncompleteReadError)


def form(*code: bytes, name: str = "job.py") -> tuple[list[bytes], dict[str, str]]:
    """The body and the headers of an upload; the code may be in pieces."""
    boundary = secrets.token_hex(8)
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    return [head, *code, f"\r\n--{boundary}--\r\n".encode()], headers


class OrdinaryCaller:
    """A user who reads and changes one job, with a token of its own.

    Args:
        connection: The user's connection.
        job: Name of the user's job.
        pause_s: Average time between two requests.

    Attributes:
        durations_ms: Duration of each answered request, by its kind.
        refused: Requests without a 2xx response.
    """

    def __init__(self, connection: Connection, job: str, *, pause_s: float = 0.25) -> None:
        self._connection = connection
        self._job = job
        self._pause_s = pause_s
        self._etag = ""
        self.durations_ms: dict[str, list[float]] = {}
        self.refused: list[str] = []

    async def create(self) -> None:
        """Upload code and create the job."""
        artifact = json.loads(await self._ask("upload", "POST", "/artifacts", *form(CODE)))["id"]
        body = json.dumps({"spec": spec(self._job), "artifact": artifact, "start": False}).encode()
        await self._ask("create", "POST", "/jobs", body, {"Content-Type": "application/json"})

    async def use(self, seconds: float) -> None:
        """Send ordinary requests, one at a time."""
        end = time.monotonic() + seconds
        number = 0
        while time.monotonic() < end:
            await asyncio.sleep(random.uniform(0.5, 1.5) * self._pause_s)
            number += 1
            await self._once(number)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    async def _once(self, number: int) -> None:
        match number % 8:
            case 0:
                labels = {"labels": {"round": str(number)}}
                body = json.dumps({"spec": spec(self._job, **labels)}).encode()
                headers = {"Content-Type": "application/json", "If-Match": self._etag}
                await self._ask("patch", "PATCH", f"/jobs/{self._job}", body, headers)
            case 1 | 3 | 5:
                await self._ask("get", "GET", f"/jobs/{self._job}")
            case 2:
                await self._ask("list", "GET", "/jobs?limit=20")
            case 4:
                await self._ask("versions", "GET", f"/jobs/{self._job}/versions")
            case 6:
                await self._ask("events", "GET", "/events/history?tail=20")
            case 7:
                await self._ask("upload", "POST", "/artifacts", *form(CODE + f"# {self._job} {number}\n".encode()))

    async def _ask(
        self,
        kind: str,
        method: str,
        path: str,
        body: bytes | list[bytes] | None = None,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        begun = time.perf_counter()
        try:
            status, received, content = await self._connection.exchange(method, path, body, headers)
            while status == 503 and b"/database-unavailable" in content:  # a busy machine; clients repeat it too
                await asyncio.sleep(0.1)
                status, received, content = await self._connection.exchange(method, path, body, headers)
        except _GONE as error:
            self.refused.append(f"{method} {path}: {error!r}")
            return b""
        self.durations_ms.setdefault(kind, []).append((time.perf_counter() - begun) * 1000)
        if not 200 <= status < 300:
            self.refused.append(f"{method} {path}: {status} {content[:200]!r}")
        if kind in ("create", "get", "patch"):
            self._etag = received.get("etag", self._etag)
        return content


class HostileCaller:
    """One operator's token, used for as much as it can do to a service; and headers without a token.

    Args:
        connect: Opens a connection with the token.
        address: Host and port of the service.
        foreign: Name of a job of another subject.
        upload_bytes: Size of an upload.
        code_bytes: Size of the Python file that is to be analysed.
        at_once: Requests that are sent in parallel.

    Attributes:
        answers: Number of responses by attack and status; ``closed``: the service closed the connection.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        address: tuple[str, int],
        foreign: str,
        *,
        upload_bytes: int = 40_000_000,
        code_bytes: int = 900_000,
        at_once: int = 500,
    ) -> None:
        self._connect = connect
        self._address = address
        self._foreign = foreign
        self._upload = b"#" * upload_bytes
        self._code = b"x=1\n" * (code_bytes // 4)
        self._at_once = at_once
        self.answers: Counter[str] = Counter()

    async def attack(self, seconds: float, *, only: Iterable[str] = ()) -> None:
        """Do everything at once for some seconds; `only`: some of the attacks."""
        attacks: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            "streams": (40, self._open_stream),
            "uploads": (4, self._send_upload),
            "downloads": (20, self._read_slowly),
            "validate": (8, self._validate),
            "forbidden": (8, self._ask_forbidden),
            "requests": (self._at_once, self._ask_all),
            "heads": (4, self._send_endless_head),
        }
        chosen = set(only) or set(attacks)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                for name, (callers, attack) in attacks.items():
                    for _ in range(callers if name in chosen else 0):
                        group.create_task(self._repeat(name, attack))

    async def _repeat(self, name: str, attack: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await attack()
            except _GONE:
                self.answers[f"{name}: closed"] += 1
                await asyncio.sleep(0.01)

    async def _exchange(self, attack: str, connection: Connection, *request: Any) -> bytes:
        status, _, body = await connection.exchange(*request)
        self.answers[f"{attack}: {status}"] += 1
        return body

    async def _open_stream(self) -> None:
        connection = self._connect()
        try:
            status = await connection.open_stream("/events")
            self.answers[f"streams: {status}"] += 1
            if status == 200:
                await asyncio.Event().wait()
            await asyncio.sleep(0.1)
        finally:
            connection.close()

    async def _send_upload(self) -> None:
        connection = self._connect()
        try:
            # New bytes each time: equal ones are stored once.
            await self._exchange("uploads", connection, "POST", "/artifacts", *form(_unique(), self._upload))
        finally:
            connection.close()

    async def _read_slowly(self) -> None:
        """Ask for bytes of one's own, and read none of them."""
        connection = self._connect()
        try:
            uploaded = await self._exchange("code", connection, "POST", "/artifacts", *form(CODE, self._upload))
            artifact = json.loads(uploaded).get("id")
            if artifact is None:
                return
            status = await connection.open_stream(f"/artifacts/{artifact}/content")
            self.answers[f"downloads: {status}"] += 1
            if status == 200:
                await asyncio.Event().wait()
        finally:
            connection.close()

    async def _validate(self) -> None:
        connection = self._connect()
        try:
            uploaded = await self._exchange("code", connection, "POST", "/artifacts", *form(_unique(), self._code))
            artifact = json.loads(uploaded).get("id")
            if artifact is None:
                return
            body = json.dumps({"spec": spec("hostile"), "artifact": artifact}).encode()
            headers = {"Content-Type": "application/json"}
            await self._exchange("validate", connection, "POST", "/jobs/validate", body, headers)
        finally:
            connection.close()

    async def _ask_forbidden(self) -> None:
        connection = self._connect()
        try:
            while True:
                await self._exchange("forbidden", connection, "DELETE", f"/jobs/{self._foreign}")
        finally:
            connection.close()

    async def _ask_all(self) -> None:
        connection = self._connect()
        try:
            while True:
                await self._exchange("requests", connection, "GET", "/jobs?limit=200")
        finally:
            connection.close()

    async def _send_endless_head(self) -> None:
        _, writer = await asyncio.open_connection(*self._address)
        try:
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-Endless: ")
            while True:
                writer.write(b"x" * 65_536)
                await writer.drain()
        finally:
            writer.transport.abort()


def _unique() -> bytes:
    return CODE + f"# {secrets.token_hex(8)}\n".encode()
