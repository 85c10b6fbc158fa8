"""Limits of request bodies: size and time, measured while the body arrives, regardless of its headers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clonos.errors import RequestTooLarge
from clonos_api.http.problems import http_response, problem_response

Limit = Callable[[str, str], int]
# Timeouts of one piece and of the whole body: a slow sender holds a connection and a file.
_PIECE_S: Final = 30.0
_WHOLE_S: Final = 600.0


class _Refused(HTTPException):
    """Passes unchanged through FastAPI's reading of bodies, which turns other exceptions into 400."""


class BodyLimits:
    """Middleware: responds 413 to bodies that are too large and 408 to bodies that are too slow.

    `limit` returns the maximum bytes by method and path; `piece_s` is the longest wait for the next chunk of a body, in
    seconds.
    """

    def __init__(self, app: ASGIApp, *, limit: Limit, piece_s: float = _PIECE_S) -> None:
        self._app = app
        self._limit = limit
        self._piece_s = piece_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limit(scope["method"], scope["path"])
        if _declared(scope) > limit:
            await _too_large(scope, limit)(scope, receive, send)
            return
        body = _Body(receive, limit, self._piece_s)
        started = False

        async def watching(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, body.receive, watching)
        except _Refused as error:
            if started:
                raise
            await http_response(error, scope["path"])(scope, receive, send)


class _Body:
    """A body while it arrives."""

    def __init__(self, receive: Receive, limit: int, piece_s: float) -> None:
        self._receive = receive
        self._limit = limit
        self._piece_s = piece_s
        self._until = asyncio.get_running_loop().time() + _WHOLE_S
        self._size = 0
        self._whole = False

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()  # waits for the disconnect, without a timeout
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(min(now + self._piece_s, self._until)):
                message = await self._receive()
        except TimeoutError:
            raise _Refused(408, "The body arrived too slowly.", {"Connection": "close"}) from None
        self._size += len(message.get("body", b""))
        if self._size > self._limit:
            raise _Refused(413, _too_large_text(self._limit), {"Connection": "close"})
        self._whole = message["type"] != "http.request" or not message.get("more_body", False)
        return message


def _declared(scope: Scope) -> int:
    length = Headers(scope=scope).get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0


def _too_large_text(limit: int) -> str:
    return f"The body exceeds the limit of {limit} bytes."


def _too_large(scope: Scope, limit: int) -> ASGIApp:
    return problem_response(
        RequestTooLarge(_too_large_text(limit)), instance=scope["path"], headers={"Connection": "close"}
    )
