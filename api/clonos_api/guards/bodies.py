"""How large a body may be, and how long it may take: counted as it comes in, whatever its header says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clonos.errors import TooLarge
from clonos_api.problems import http_response, problem_response

Limit = Callable[[str, str], int]
# A sender that drips bytes holds a connection and a file; so long for a piece, and so long for all.
_PIECE_S: Final = 30.0
_WHOLE_S: Final = 600.0


class _Refused(HTTPException):
    """Goes through FastAPI's reading of bodies as it is; any other exception would become 400 there."""


class BodyLimits:
    """Middleware: 413 for bodies that are too large, 408 for those that do not come.

    Args:
        app: What comes after.
        limit: Bytes allowed, by method and path.
        piece_s: How long to wait for a piece.
    """

    def __init__(self, app: ASGIApp, *, limit: Limit, piece_s: float = _PIECE_S) -> None:
        self._app = app
        self._limit = limit
        self._piece_s = piece_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limit(scope["method"], scope["path"])
        if _declared(scope) > limit:
            await _too_large(scope, limit)(scope, receive, send)
            return
        body = _Body(receive, limit, self._piece_s)
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, body.receive, noting)
        except _Refused as error:
            if started:
                raise
            await http_response(error, scope["path"])(scope, receive, send)


class _Body:
    """One body as it comes in."""

    def __init__(self, receive: Receive, limit: int, piece_s: float) -> None:
        self._receive = receive
        self._limit = limit
        self._piece_s = piece_s
        self._until = asyncio.get_running_loop().time() + _WHOLE_S
        self._size = 0
        self._whole = False

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()  # for the end of the connection, which may be a long way off
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(min(now + self._piece_s, self._until)):
                message = await self._receive()
        except TimeoutError:
            raise _Refused(408, "The body did not come in time.", {"Connection": "close"}) from None
        self._size += len(message.get("body", b""))
        if self._size > self._limit:
            raise _Refused(413, _what(self._limit), {"Connection": "close"})
        self._whole = message["type"] != "http.request" or not message.get("more_body", False)
        return message


def _declared(scope: Scope) -> int:
    length = Headers(scope=scope).get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0


def _what(limit: int) -> str:
    return f"The body is larger than the {limit} bytes that it may have here."


def _too_large(scope: Scope, limit: int) -> ASGIApp:
    return problem_response(TooLarge(_what(limit)), instance=scope["path"], headers={"Connection": "close"})
