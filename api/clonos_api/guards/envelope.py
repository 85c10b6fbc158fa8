"""What every request and answer carries: an id, and headers that keep browsers from guessing, framing and leaking."""

from __future__ import annotations

import re
import secrets
from typing import Final

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clonos_api.problems import unexpected_response

HEADER: Final = "X-Request-ID"
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Nothing of an API is a page; what is one says its own policy.
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}

_log = structlog.get_logger(__name__)


class Envelope:
    """Outermost middleware: request id, security headers, and an answer to what nobody expected.

    Args:
        app: What comes after.
        tls: Whether browsers shall never again come without TLS.
    """

    def __init__(self, app: ASGIApp, *, tls: bool = False) -> None:
        self._app = app
        self._headers = {**_HEADERS, **({"Strict-Transport-Security": "max-age=31536000"} if tls else {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        request_id = scope["clonos.request_id"] = given if _ID.fullmatch(given) else secrets.token_hex(8)
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
            except Exception:
                if started:
                    raise  # the connection is cut: the client must not take half an answer for a whole one
                _log.exception("a request failed", method=scope["method"], path=scope["path"])
                await unexpected_response(scope)(scope, receive, sealed)
