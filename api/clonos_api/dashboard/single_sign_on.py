"""Sign-in through the OpenID Connect provider of the settings. Without these settings its pages do not exist."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

import structlog
from fastapi import APIRouter, HTTPException, Request, Response
from starlette.responses import RedirectResponse

from clonos.errors import ClonosError, RequestRejected, TooManyRequests, Unauthenticated
from clonos_api.auth.cookies import cookie_of, cookie_path
from clonos_api.auth.denials import record_failed_sign_in
from clonos_api.auth.identity_provider import Attempt, IdentityProvider, not_begun
from clonos_api.auth.rates import address_of
from clonos_api.dashboard import session as pages
from clonos_api.http.problems import http_status
from clonos_api.http.sub_path import prefix_of
from clonos_api.replica import Replica, ReplicaDep
from clonos_api.store import sessions, sign_in_codes

BEGIN: Final = "/signin/oidc"
END: Final = "/signin/oidc/callback"
_LONGEST: Final = 2_000
_log = structlog.get_logger("clonos.api")
router = APIRouter(include_in_schema=False)


@router.get(BEGIN)
async def begin(request: Request, replica: ReplicaDep) -> Response:
    """Send the browser to the provider."""
    provider = _provider(replica)
    attempt = Attempt(request.query_params.get("next", cookie_path(request))[:_LONGEST])
    try:
        _count(request, replica)
        response = RedirectResponse(await provider.authorization_url(attempt, _redirect_uri(request)), 303)
        cookie = attempt.encode()
        async with replica.database.transaction() as session:
            await sign_in_codes.begin_attempt(session, cookie)
    except ClonosError as error:
        return await _refused(request, replica, error)
    response.set_cookie(
        _cookie(request),
        cookie,
        max_age=round(sign_in_codes.ATTEMPT_S),
        httponly=True,
        samesite="lax",  # the provider's redirect comes from another site
        secure=request.url.scheme == "https",
        path=cookie_path(request),
    )
    return response


@router.get(END)
async def end(request: Request, replica: ReplicaDep) -> Response:
    """Open a session for the user that the provider has sent back."""
    provider = _provider(replica)
    code, state = request.query_params.get("code", ""), request.query_params.get("state", "")
    try:
        cookie = request.cookies.get(_cookie(request), "")
        attempt = Attempt.decode(cookie, state)
        if not 0 < len(code) <= _LONGEST:
            raise Unauthenticated("The identity provider did not sign you in.", hint="sign in again.")
        _count(request, replica)
        async with replica.database.transaction() as session:
            if not await sign_in_codes.use_up_attempt(session, cookie):
                raise not_begun()
        identity = await provider.identify(attempt, code, _redirect_uri(request))
        async with replica.database.transaction() as session:
            row, text = await sessions.open_by_provider(
                session, subject=identity.subject, role=identity.role, lifetime_s=provider.settings.session_s
            )
    except ClonosError as error:
        return await _refused(request, replica, error)
    # Browsers do not send the strict cookie in a navigation that another site began: this page's script does.
    response = RedirectResponse(f"{pages.SIGN_IN}?{urlencode({'next': attempt.next})}", 303)
    pages.keep(response, request, text, row)
    response.delete_cookie(
        _cookie(request), path=cookie_path(request), httponly=True, secure=request.url.scheme == "https"
    )
    return response


def _provider(replica: Replica) -> IdentityProvider:
    if replica.identity_provider is None:
        raise HTTPException(404)
    return replica.identity_provider


def _count(request: Request, replica: Replica) -> None:
    """Limit the requests that make this service connect to the provider."""
    if replica.sign_ins.take(address_of(request.scope)) > 0:
        raise TooManyRequests("Too many sign-ins from this address.", hint="wait a minute.")


async def _refused(request: Request, replica: Replica, error: ClonosError) -> Response:
    cause = type(error.__cause__).__name__ if error.__cause__ is not None else ""
    _log.warning("A sign-in failed", error=error.slug, why=error.what, cause=cause)
    if isinstance(error, RequestRejected) and not isinstance(error, TooManyRequests):  # the limit bounds the audit log
        await record_failed_sign_in(replica.database, request, error, address_of(request.scope))
    return pages.sign_in_page(request, problem=f"{error.what} {error.hint}".strip(), status=http_status(error))


def _cookie(request: Request) -> str:
    return f"{cookie_of(request)}_signin"


def _redirect_uri(request: Request) -> str:
    """Where the provider sends the browser back; the service has checked the host name."""
    return f"{request.url.scheme}://{request.headers['host']}{prefix_of(request)}{END}"
