"""One persistent HTTP/1.1 connection with minimal overhead: a load generator must not measure itself.

It supports only responses of the control plane, which have a ``Content-Length`` or are chunked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any


class RequestFailed(Exception):
    """The response has no 2xx status."""

    def __init__(self, request: str, status: int, body: bytes) -> None:
        super().__init__(f"{request}: {status} {body[:300]!r}")
        self.status = status


class Connection:
    """A connection that sends a token.

    Args:
        host: Address of the service.
        port: Port of the service.
        token: Token of the client.
    """

    def __init__(self, host: str, port: int, token: str) -> None:
        self._host, self._port = host, port
        self._head = f" HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> Any:
        """Send a request and return the JSON of the response, or None. Reopens a closed connection once.

        Raises:
            RequestFailed: The status is not 2xx.
            OSError: The service is unreachable.
        """
        reused = self._streams is not None
        try:
            status, body_bytes = await self._exchange(method, path, body, kind)
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            if not reused:
                raise
            status, body_bytes = await self._exchange(method, path, body, kind)
        except BaseException:
            self.close()
            raise
        if not 200 <= status < 300:
            raise RequestFailed(f"{method} {path}", status, body_bytes)
        return json.loads(body_bytes) if body_bytes else None

    async def lines(self, path: str) -> AsyncIterator[str]:
        """The lines of a streamed response."""
        reader = await self._send("GET", path, None, "")
        status, headers = await _headers(reader)
        if status != 200 or headers.get("transfer-encoding") != "chunked":
            raise RequestFailed(f"GET {path}", status, b"")
        rest = ""
        while size := int(await reader.readline(), 16):
            rest += (await reader.readexactly(size)).decode()
            await reader.readexactly(2)
            *whole, rest = rest.split("\n")
            for line in whole:
                yield line

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _exchange(self, method: str, path: str, body: bytes | None, kind: str) -> tuple[int, bytes]:
        reader = await self._send(method, path, body, kind)
        status, headers = await _headers(reader)
        body_bytes = await reader.readexactly(int(headers.get("content-length", 0)))
        if headers.get("connection") == "close":
            self.close()
        return status, body_bytes

    async def _send(self, method: str, path: str, body: bytes | None, kind: str) -> asyncio.StreamReader:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, limit=1 << 22)
        reader, writer = self._streams
        head = f"{method} /api/v1{path}{self._head}"
        if body is not None:
            head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"\r\n" + (body or b""))
        return reader


async def _headers(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:-2])
    return int(head[0].split(" ", 2)[1]), headers
