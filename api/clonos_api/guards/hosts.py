"""Rejects DNS rebinding (a foreign `Host`) and cross-site requests (a foreign `Origin`)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from clonos.errors import OriginNotAllowed
from clonos_api.http.problems import problem_response

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::(\d{1,5}))?")
_ORIGIN: Final = re.compile(r"(https?)://(\S+)")
_DEFAULT_PORT: Final = {"http": "80", "https": "443"}
_NOT_ALLOWED: Final = "A page of this origin may not call the service."


class HostCheck:
    """Middleware: responds 403 to foreign host names and foreign origins.

    `hosts` are the service's names without ports, besides the loopback names; `origins` are allowed besides its own,
    which has the scheme of the request: ``X-Forwarded-Proto`` names it, if a trusted proxy sent it.
    """

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._app = app
        self._hosts = LOOPBACK | {host.lower() for host in hosts}
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        reason = self._refusal(scope) if scope["type"] in ("http", "websocket") else None
        if reason is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await problem_response(OriginNotAllowed(reason))(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _refusal(self, scope: Scope) -> str | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        host = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if host is None or host[1].lower() not in self._hosts:
            return "The service does not have this host name."
        origins = headers.getlist("origin")
        if origins:
            if len(origins) == 1 and origins[0].lower() in self._origins:
                return None
            return _foreign(origins[0] if len(origins) == 1 else "", host, scope["scheme"])
        # Requests without `Origin` (images, links) have `Sec-Fetch-Site`. Following a link is allowed.
        navigation = scope.get("method") in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not navigation:
            return "A page of another site may not call the service."
        return None


def _foreign(origin: str, host: re.Match[str], scheme: str) -> str | None:
    """Why an origin is not the called host and scheme; None if it is."""
    parsed = _ORIGIN.fullmatch(origin.lower())
    page = _HOST.fullmatch(parsed[2]) if parsed else None
    if parsed is None or page is None or page[1] != host[1].lower():
        return _NOT_ALLOWED
    default = _DEFAULT_PORT[parsed[1]]
    if (page[2] or default) != (host[2] or default):
        return _NOT_ALLOWED
    if parsed[1] != scheme:  # a page of ``http`` may have been forged on its way
        return (
            f"A page of {parsed[1]} may not call the service by {scheme}. Behind a proxy that terminates TLS, set "
            "CLONOS_API__TRUSTED_PROXIES."
        )
    return None
