"""Conditional requests (RFC 9110, section 13): responds 304 without a body if the client has the representation."""

from __future__ import annotations

import hashlib
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clonos.resources.service import Role
from clonos_api.auth.principal import Principal

_PATHS: Final = "/api/v1/"
_JSON: Final = "application/json"


class ConditionalGet:
    """Innermost middleware: adds an ``ETag`` to JSON of the API, and compares ``If-None-Match``.

    A route that sets its own ``ETag`` keeps it. Responses to agents have none: agents compare revisions.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] != "GET" or not scope["path"].startswith(_PATHS):
            await self._app(scope, receive, send)
            return
        principal = scope.get("clonos.principal")
        if isinstance(principal, Principal) and principal.role is Role.AGENT:
            await self._app(scope, receive, send)
            return
        known = ",".join(Headers(scope=scope).getlist("if-none-match"))  # several lines are one list
        await self._app(scope, receive, _Response(send, known).send)


class _Response:
    """Sends one response, or 304 in its place."""

    def __init__(self, send: Send, known: str) -> None:
        self._send = send
        self._known = {tag.strip().removeprefix("W/") for tag in known.split(",") if tag.strip()}
        self._start: Message | None = None  # held back until the body is known
        self._omit_body = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if message["status"] == 200 and "etag" in headers:
                await self._begin(message, headers["etag"])
            elif message["status"] == 200 and headers.get("content-type", "").startswith(_JSON):
                self._start = message
            else:
                await self._send(message)
            return
        if self._start is not None:
            start, self._start = self._start, None
            if message.get("more_body"):
                await self._send(start)
            else:
                digest = hashlib.blake2b(message.get("body", b""), digest_size=12).hexdigest()
                await self._begin(start, f'"{digest}"')
        if not self._omit_body:
            await self._send(message)

    async def _begin(self, message: Message, etag: str) -> None:
        headers = MutableHeaders(scope=message)
        headers["ETag"] = etag
        if etag.removeprefix("W/") in self._known or "*" in self._known:
            self._omit_body = True
            for name in ("content-length", "content-type"):
                del headers[name]
            await self._send({**message, "status": 304})
            await self._send({"type": "http.response.body"})
        else:
            await self._send(message)
