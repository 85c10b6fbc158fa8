"""Sign-in: the browser keeps an API token in a cookie that scripts cannot read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from fastapi import APIRouter, Request, Response

from clonos_api.auth import Principal
from clonos_api.auth.cookies import cookie_of, presented
from clonos_api.dashboard.rendering import Page, render
from clonos_api.replica import SettingsDep
from clonos_api.routes.access import Viewer
from clonos_api.settings import ApiSettings

SIGN_IN: Final = "/signin"
SIGN_OUT: Final = "/signout"
_MONTH_S: Final = 30 * 86_400
router = APIRouter(include_in_schema=False)


@router.get(SIGN_IN)
async def sign_in(request: Request) -> Response:
    """Show the sign-in form. A script of the page sends the user's token to `open_session`."""
    return render(request, Page("signin.html", "Sign in"), {})


@router.post("/session", status_code=204)
async def open_session(caller: Viewer, request: Request, settings: SettingsDep) -> Response:
    """Set the session cookie to the token of the request, until the token expires, for at most a month."""
    response = Response(status_code=204)
    _keep(response, request, presented(request.headers.getlist("authorization")), caller, settings)
    return response


@router.post("/session/renewal", status_code=204)
async def renew_session(caller: Viewer, request: Request, settings: SettingsDep) -> Response:
    """Renew the session cookie for the same time as `open_session`; open pages call this daily."""
    response = Response(status_code=204)
    token = request.cookies.get(cookie_of(request))
    if token:
        _keep(response, request, token, caller, settings)
    return response


def _keep(response: Response, request: Request, token: str, caller: Principal, settings: ApiSettings) -> None:
    left = _MONTH_S if caller.expires_at is None else int((caller.expires_at - datetime.now(UTC)).total_seconds())
    response.set_cookie(
        cookie_of(request),
        token,
        max_age=max(1, min(_MONTH_S, left)),
        httponly=True,
        samesite="strict",
        secure=settings.scheme == "https" or request.headers.get("origin", "").startswith("https:"),
        path="/",
    )


@router.post(SIGN_OUT, status_code=204)
async def sign_out(request: Request) -> Response:
    """Delete the session cookie, also while the token cannot be checked.

    The token itself stays valid: `clonos token revoke` revokes it.
    """
    response = Response(status_code=204)
    response.delete_cookie(cookie_of(request), path="/", httponly=True, samesite="strict")
    return response
