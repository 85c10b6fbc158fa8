"""One persistent HTTP/1.1 connection with minimal overhead: a load generator must not measure itself.

It supports only responses of the control plane, which have a ``Content-Length`` or are chunked. Benchmarks and tests
use it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

_PIECE: Final = 1 << 18


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
        status, _, body_bytes = await self.exchange(method, path, body, {"Content-Type": kind} if body else {})
        if not 200 <= status < 300:
            raise RequestFailed(f"{method} {path}", status, body_bytes)
        return json.loads(body_bytes) if body_bytes else None

    async def exchange(
        self,
        method: str,
        path: str,
        body: bytes | Sequence[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request; return the status, the headers (names in lower case) and the body of the response.

        A body may be in pieces. Reopens a closed connection once.
        """
        reused = self._streams is not None
        try:
            return await self._exchange(method, path, body, headers or {})
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            if not reused:
                raise
            return await self._exchange(method, path, body, headers or {})
        except BaseException:
            self.close()
            raise

    async def open_stream(self, path: str) -> int:
        """Begin to read a streamed response; return its status."""
        status, _ = await _headers(await self._send("GET", path, None, {}))
        return status

    async def lines(self, path: str) -> AsyncIterator[str]:
        """The lines of a streamed response."""
        reader = await self._send("GET", path, None, {})
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
            self._streams[1].transport.abort()  # what is still to be sent does not delay it
            self._streams = None

    async def _exchange(
        self, method: str, path: str, body: bytes | Sequence[bytes] | None, headers: Mapping[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        reader = await self._send(method, path, body, headers)
        status, received = await _headers(reader)
        body_bytes = await reader.readexactly(int(received.get("content-length", 0)))
        if received.get("connection") == "close":
            self.close()
        return status, received, body_bytes

    async def _send(
        self, method: str, path: str, body: bytes | Sequence[bytes] | None, headers: Mapping[str, str]
    ) -> asyncio.StreamReader:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, limit=1 << 22)
        reader, writer = self._streams
        head = f"{method} /api/v1{path}{self._head}"
        head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        pieces = [body] if isinstance(body, bytes) else list(body or ())
        if body is not None:
            head += f"Content-Length: {sum(map(len, pieces))}\r\n"
        sent = head.encode() + b"\r\n"
        if len(pieces) == 1 and len(pieces[0]) <= _PIECE:
            sent += pieces.pop()
        writer.write(sent)
        for piece in pieces:
            for at in range(0, len(piece), _PIECE):
                writer.write(piece[at : at + _PIECE])
                await writer.drain()
        return reader


async def _headers(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    lines = (line.split(": ", 1) for line in head[1:-2])
    return int(head[0].split(" ", 2)[1]), {name.lower(): value for name, value in lines}
