"""Sign-in: a session of some hours, whose random token the browser keeps in a cookie that scripts cannot read.

The API token itself is not in the cookie: cookies are sent to every port of a host name.

A link of `clonos open` has a code in its fragment, which browsers do not send: it is in no log and no `Referer`. The
page removes it from the address and the history, and sends it when the user presses "Sign in". Without that button, a
link from another user would sign the user in as that other one.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Final

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from clonos.errors import ClonosError, OriginNotAllowed, TooManyRequests, Unauthenticated
from clonos_api.auth.cookies import cookie_of, cookie_path, has_own_origin
from clonos_api.auth.denials import record_unauthenticated
from clonos_api.auth.rates import Buckets, address_of
from clonos_api.dashboard.rendering import Page, render
from clonos_api.http.bodies import checked, json_of
from clonos_api.http.checked_json import CheckedRoute
from clonos_api.replica import DatabaseDep, ReplicaDep, replica_of
from clonos_api.routes.access import Viewer
from clonos_api.store import sessions, sign_in_codes, tokens
from clonos_api.store.db.database import Actor
from clonos_api.store.tables import TokenRow

SIGN_IN: Final = "/signin"
SIGN_OUT: Final = "/signout"
BY_LINK: Final = "/session/link"
router = APIRouter(route_class=CheckedRoute, include_in_schema=False)


class LinkCode(BaseModel):
    """The code of a link."""

    code: str = Field(min_length=1, max_length=200)


@router.get(SIGN_IN)
async def sign_in(request: Request) -> Response:
    """Show the sign-in form. A script of the page sends the user's token to `open_session`."""
    return sign_in_page(request)


def sign_in_page(request: Request, *, problem: str = "", status: int = 200) -> Response:
    """Return the page with the sign-in form, and with the reason why a sign-in failed."""
    provider = replica_of(request).identity_provider
    values = {
        "provider": provider.settings.name if provider is not None else "",
        "next": request.query_params.get("next", cookie_path(request)),
        "problem": problem,
    }
    return render(request, Page("signin.html", "Sign in"), values, status=status)


@router.post("/session", status_code=204)
async def open_session(caller: Viewer, request: Request, database: DatabaseDep) -> Response:
    """Open a session with the rights of the request's token, and set the session cookie."""
    response = Response(status_code=204)
    if caller.token is not None:
        async with database.transaction(by=caller.actor) as session:
            row, text = await sessions.open_by_token(session, caller.token)
        keep(response, request, text, row)
    return response


@router.post(BY_LINK, status_code=204)
async def open_session_by_link(request: Request, database: DatabaseDep) -> Response:
    """Open a session with a link's code, which is then used up, and set the session cookie. It needs no token.

    The origin and the rate of the address are checked before the body is read. Each request counts as one without a
    valid token.
    """
    if not has_own_origin(request):
        raise OriginNotAllowed("Only the sign-in page of this service may use a link's code.")
    address = address_of(request.scope)
    failures: Buckets = request.app.state.failures
    if failures.take(address) > 0:
        raise TooManyRequests("Too many sign-ins from this address.", hint="wait a minute.")
    code = checked(LinkCode, json_of(await request.body())).code
    async with database.reading() as session:
        known = await sign_in_codes.is_known(session, code)
    opened = None
    if known:
        async with database.transaction() as session:
            opened = await sign_in_codes.redeem(session, code)
    if opened is None:
        await record_unauthenticated(database, request, address, "")
        raise Unauthenticated(
            "The link is not valid: it works once, within a minute.",
            hint="run `clonos open` again, or sign in with a token.",
        )
    response = Response(status_code=204)
    keep(response, request, opened[1], opened[0])
    return response


@router.post("/session/renewal", status_code=204)
async def renew_session(caller: Viewer, request: Request, database: DatabaseDep) -> Response:
    """Extend the session, for as long as `open_session` did; open pages call this hourly."""
    response = Response(status_code=204)
    text = request.cookies.get(cookie_of(request))
    if text and caller.token is not None:
        async with database.transaction() as session:
            row = await sessions.renew(session, caller.token)
        if row is not None:
            keep(response, request, text, row)
    return response


def keep(response: Response, request: Request, text: str, row: TokenRow) -> None:
    """Set the cookie with the token `text` of the session `row`."""
    left_s = sessions.LIFETIME_S if row.expires_at is None else (row.expires_at - datetime.now(UTC)).total_seconds()
    response.set_cookie(
        cookie_of(request),
        text,
        max_age=max(1, round(left_s)),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path=cookie_path(request),
    )


@router.post(SIGN_OUT, status_code=204)
async def sign_out(request: Request, replica: ReplicaDep) -> Response:
    """End the session and delete its cookie, also while the session cannot be checked. The API token stays valid."""
    text = request.cookies.get(cookie_of(request), "")
    with contextlib.suppress(ClonosError):
        row = await tokens.authenticate(replica.database, text)
        if row is not None and row.session_of is not None:
            async with replica.database.transaction(by=Actor(row.subject, row.id)) as session:
                await sessions.end(session, row.id)
    response = Response(status_code=204)
    secure = request.url.scheme == "https"  # a browser accepts nothing else for a name with ``__Host-``
    response.delete_cookie(
        cookie_of(request), path=cookie_path(request), httponly=True, samesite="strict", secure=secure
    )
    return response
