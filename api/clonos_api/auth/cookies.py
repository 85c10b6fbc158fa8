"""Browsers keep a token in a cookie; everybody else presents it in a header."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from fastapi import Request

_SAFE: Final = ("GET", "HEAD", "OPTIONS")


def cookie_of(request: Request) -> str:
    """The cookie's name: with the port, which cookies do not look at, so that two services of a machine have two."""
    port = request.headers.get("host", "").rpartition("]")[2].partition(":")[2]
    return f"clonos_token_{port}" if port.isdecimal() and port.isascii() else "clonos_token"


def presented(authorization: Sequence[str]) -> str:
    """The token of the header ``Authorization``; empty if there is none, or not exactly one."""
    scheme, _, token = authorization[0].partition(" ") if len(authorization) == 1 else ("", "", "")
    return token.strip() if scheme.lower() == "bearer" else ""


def kept(request: Request) -> str:
    """The token that a browser sends along by itself; empty where that could be another page's doing.

    Browsers name the page that writes (``Origin``). Another origin's may call the API (`allowed_origins`), with a token
    of its own: what a person has signed in to is for our pages alone.
    """
    if request.method not in _SAFE:
        origin = urlsplit(request.headers.get("origin", ""))
        if not origin.netloc or origin.netloc.lower() != request.headers.get("host", "").lower():
            return ""
    return request.cookies.get(cookie_of(request), "")


def is_visit(request: Request) -> bool:
    """Whether a browser goes to a page, as opposed to a program or a script that wants to know what is wrong."""
    page = not request.url.path.startswith("/api/") and request.method == "GET"
    return page and "hx-request" not in request.headers and "text/html" in request.headers.get("accept", "")
