"""Browsers keep a token in a cookie; everybody else presents it in a header."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fastapi import Request

COOKIE: Final = "clonos_token"
_SAFE: Final = ("GET", "HEAD", "OPTIONS")


def presented(authorization: Sequence[str]) -> str:
    """The token of the header ``Authorization``; empty if there is none, or not exactly one."""
    scheme, _, token = authorization[0].partition(" ") if len(authorization) == 1 else ("", "", "")
    return token.strip() if scheme.lower() == "bearer" else ""


def kept(request: Request) -> str:
    """The token that a browser sends along by itself; empty where that could be another page's doing.

    Browsers name the page that writes (``Origin``), and `clonos_api.guards.hosts` lets only our own through: a request
    that writes and names none is not from a page of ours.
    """
    if request.method not in _SAFE and not request.headers.get("origin"):
        return ""
    return request.cookies.get(COOKIE, "")


def is_visit(request: Request) -> bool:
    """Whether a browser goes to a page, as opposed to a program that calls the API."""
    page = not request.url.path.startswith("/api/") and request.method == "GET"
    return page and "text/html" in request.headers.get("accept", "")
