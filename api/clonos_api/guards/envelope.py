"""Adds a request id to each request, and security headers to each response."""

from __future__ import annotations

import re
import secrets
from typing import Final

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clonos_api.http.problems import unexpected_response

HEADER: Final = "X-Request-ID"
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # The API has no pages; the dashboard's pages set their own policy.
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}

_log = structlog.get_logger(__name__)


class Envelope:
    """Outermost middleware: adds a request id and security headers, and responds to unexpected errors.

    With `tls`, browsers must always use TLS from now on.
    """

    def __init__(self, app: ASGIApp, *, tls: bool = False) -> None:
        self._app = app
        self._headers = {**_HEADERS, **({"Strict-Transport-Security": "max-age=31536000"} if tls else {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        header = Headers(scope=scope).get(HEADER, "")
        request_id = scope["clonos.request_id"] = header if _ID.fullmatch(header) else secrets.token_hex(8)
        started = False

        async def sealed(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers[HEADER] = request_id
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, sealed)
            except ClientDisconnect:
                _log.info("the client disconnected", method=scope["method"], path=scope["path"])
            except Exception:
                if started:
                    raise  # closes the connection, so that the client notices the incomplete response
                _log.exception("a request failed", method=scope["method"], path=scope["path"])
                await unexpected_response(scope)(scope, receive, sealed)
