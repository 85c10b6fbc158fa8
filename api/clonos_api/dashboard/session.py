"""Signing in: a token of the API, kept by the browser where no script can read it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from fastapi import APIRouter, Request, Response

from clonos_api.auth import Principal
from clonos_api.auth.cookies import cookie_of, presented
from clonos_api.dashboard.rendering import Page, render
from clonos_api.routes.access import Viewer
from clonos_api.services import Settings

SIGN_IN: Final = "/signin"
SIGN_OUT: Final = "/signout"
_MONTH_S: Final = 30 * 86_400
router = APIRouter(include_in_schema=False)


@router.get(SIGN_IN)
async def sign_in(request: Request) -> Response:
    """Where a token is asked for. Its script presents it to `open_session`."""
    return render(request, Page("signin.html", "Sign in"), {})


@router.post("/session", status_code=204)
async def open_session(caller: Viewer, request: Request, settings: Settings) -> Response:
    """Keep the token that the request presents in the browser, for as long as it counts."""
    response = Response(status_code=204)
    tls = settings.scheme == "https" or request.headers.get("origin", "").startswith("https:")
    _keep(response, request, presented(request.headers.getlist("authorization")), caller, tls=tls)
    return response


@router.post("/session/renewal", status_code=204)
async def renew_session(caller: Viewer, request: Request, settings: Settings) -> Response:
    """Keep the browser's token for another month: an overview that hangs on a wall asks now and then."""
    response = Response(status_code=204)
    token = request.cookies.get(cookie_of(request))
    if token:
        tls = settings.scheme == "https" or request.headers.get("origin", "").startswith("https:")
        _keep(response, request, token, caller, tls=tls)
    return response


def _keep(response: Response, request: Request, token: str, caller: Principal, *, tls: bool) -> None:
    left = _MONTH_S if caller.expires_at is None else int((caller.expires_at - datetime.now(UTC)).total_seconds())
    response.set_cookie(
        cookie_of(request),
        token,
        max_age=max(1, min(_MONTH_S, left)),
        httponly=True,
        samesite="strict",
        secure=tls,
        path="/",
    )


@router.post(SIGN_OUT, status_code=204)
async def sign_out(request: Request) -> Response:
    """Have the browser forget the token, also while nobody can say whose it is.

    The token itself goes on: `clonos token revoke` ends it.
    """
    response = Response(status_code=204)
    response.delete_cookie(cookie_of(request), path="/", httponly=True, samesite="strict")
    return response
