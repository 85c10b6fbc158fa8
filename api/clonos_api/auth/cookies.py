"""Reads tokens from the ``Authorization`` header, or from the cookie of a browser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from fastapi import Request

from clonos_api.http.sub_path import prefix_of

_SAFE: Final = ("GET", "HEAD", "OPTIONS")


def cookie_of(request: Request) -> str:
    """Return the name of the cookie that holds the token of a browser's session.

    The name contains the port, because ports of one host share cookies. With TLS it begins with ``__Host-``: browsers
    accept such a cookie only from this host itself, and send it only by TLS. Below the path of a proxy, other services
    have the same host: there the cookie is sent only below that path, which ``__Host-`` does not permit.
    """
    port = request.headers.get("host", "").rpartition("]")[2].partition(":")[2]
    name = f"clonos_session_{port}" if port.isdecimal() and port.isascii() else "clonos_session"
    if request.url.scheme != "https":
        return name
    return f"__Secure-{name}" if prefix_of(request) else f"__Host-{name}"


def cookie_path(request: Request) -> str:
    """Return the path below which browsers send the service's cookies."""
    return f"{prefix_of(request)}/"


def presented(authorization: Sequence[str]) -> str:
    """Return the bearer token in the values of the header ``Authorization``; empty unless there is exactly one."""
    scheme, _, token = authorization[0].partition(" ") if len(authorization) == 1 else ("", "", "")
    return token.strip() if scheme.lower() == "bearer" else ""


def cookie_token(request: Request) -> str:
    """Return the token in a browser's cookie; empty if a page of another site may have caused the request.

    For writes the header ``Origin`` must be this service. Pages of `allowed_origins` may call the API only with a token
    of their own in the header.
    """
    if request.method not in _SAFE and not has_own_origin(request):
        return ""
    return request.cookies.get(cookie_of(request), "")


def has_own_origin(request: Request) -> bool:
    """Whether the header ``Origin`` says that a page of this service sent the request, with the same scheme."""
    origin = urlsplit(request.headers.get("origin", ""))
    own = (request.url.scheme, request.headers.get("host", "").lower())
    return bool(origin.netloc) and (origin.scheme.lower(), origin.netloc.lower()) == own


def is_visit(request: Request) -> bool:
    """Whether a browser navigates to a page; programs and scripts get an error response instead of a redirect."""
    page = not request.url.path.startswith("/api/") and request.method == "GET"
    return page and "hx-request" not in request.headers and "text/html" in request.headers.get("accept", "")
