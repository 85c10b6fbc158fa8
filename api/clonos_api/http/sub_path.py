"""The path below which a proxy publishes the service, such as ``/clonos``.

Routes, pages and streams know nothing of it: the middleware removes it from the path of a request, wherever the proxy
has not, and adds it to the ``Location`` of a response. Pages have relative links, and it is in their ``<base>``.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final
from urllib.parse import unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clonos_api.http.limited_protocol import Network
from clonos_api.settings import PREFIX

_KEY: Final = "clonos.prefix"


def prefix_of(request: HTTPConnection) -> str:
    """Return the prefix of a request's path in the browser, without ``/`` at its end; empty: there is none."""
    return str(request.scope.get(_KEY, ""))


class SubPath:
    """Middleware for a service below the path of another one.

    Args:
        app: The application.
        prefix: The prefix of all requests.
        proxies: The proxies whose header ``X-Forwarded-Prefix`` takes precedence.
    """

    def __init__(self, app: ASGIApp, *, prefix: str = "", proxies: Collection[Network] = ()) -> None:
        self._app = app
        self._prefix = prefix
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        prefix = self._of(scope) if scope["type"] == "http" else ""
        if not prefix:
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        if path == prefix:  # relative links need the ``/``
            await RedirectResponse(f"{prefix}/", 308)(scope, receive, send)
            return
        kept = path.startswith(f"{prefix}/")  # the proxy has not removed it
        raw = scope.get("raw_path") or path.encode()
        below = {"path": path.removeprefix(prefix), "raw_path": _without(raw, prefix)} if kept else {}

        async def prefixed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                location = headers.get("location", "")
                if location.startswith("/") and not location.startswith("//"):
                    headers["location"] = prefix + location
            await send(message)

        await self._app({**scope, **below, _KEY: prefix}, receive, prefixed)

    def _of(self, scope: Scope) -> str:
        sent = Headers(scope=scope).getlist("x-forwarded-prefix")
        if len(sent) == 1 and self._is_proxy(scope):
            prefix = f"/{sent[0].strip().strip('/')}".rstrip("/")
            if PREFIX.fullmatch(prefix):
                return prefix
        return self._prefix

    def _is_proxy(self, scope: Scope) -> bool:
        client = scope.get("client")
        try:
            address = ipaddress.ip_address(client[0]) if client else None
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return address is not None and any(address in network for network in self._proxies)


def _without(raw: bytes, prefix: str) -> bytes:
    """Return the path as it was sent, without the prefix, whose characters may have been encoded there."""
    text, parts = raw.decode("latin-1"), prefix.count("/")
    segments = text.split("/")
    if unquote("/".join(segments[: parts + 1])) == prefix:
        return ("/" + "/".join(segments[parts + 1 :])).encode("latin-1")
    return raw
