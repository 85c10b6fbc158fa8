"""REST routes for API tokens, the sessions of browsers, the links that sign them in, and the audit log."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Depends, Path, Query, Response

from clonos.errors import NotFound
from clonos.resources.base import Moment, Page
from clonos.resources.service import (
    AuditEntry,
    EndedSessions,
    Session,
    SignInCode,
    Token,
    TokenCreate,
    TokenCreated,
)
from clonos_api.auth import Principal
from clonos_api.auth.authentication import LOCAL
from clonos_api.guards.idempotency import refuse_key
from clonos_api.http.bodies import TEXT
from clonos_api.http.checked_json import CheckedRoute
from clonos_api.replica import DatabaseDep
from clonos_api.routes.access import API, Admin, AnyCaller, NumberWindowDep, ReadingDep, Viewer, WindowDep
from clonos_api.routes.documented import problems
from clonos_api.store import audit, sessions, sign_in_codes, tokens, views

router = APIRouter(route_class=CheckedRoute, prefix=f"{API}/tokens", tags=["tokens"])
session_router = APIRouter(route_class=CheckedRoute, prefix=f"{API}/sessions", tags=["tokens"])
code_router = APIRouter(route_class=CheckedRoute, prefix=f"{API}/sign-in-codes", tags=["tokens"])
audit_router = APIRouter(route_class=CheckedRoute, prefix=f"{API}/audit", tags=["audit"])

_OVERLAP_S: Final = 30 * 86_400

TokenPath = Annotated[str, Path(min_length=1, max_length=16, pattern=TEXT, description="Id of a token.")]
SessionPath = Annotated[
    str, Path(alias="session", min_length=1, max_length=16, pattern=TEXT, description="Id of a session.")
]
_SUBJECT = Query(min_length=1, max_length=100, pattern=TEXT, description="Only sessions of this subject.")


@router.post("", status_code=201, dependencies=[Depends(refuse_key)])
async def create_token(body: TokenCreate, caller: Admin, database: DatabaseDep, response: Response) -> TokenCreated:
    """Create an API token. Only this response contains its secret."""
    async with database.transaction(by=caller.actor) as session:
        row, secret = await tokens.create(session, body, caller=caller.token if caller != LOCAL else None)
    response.headers["Location"] = f"{API}/tokens/{row.id}"
    response.headers["Cache-Control"] = "no-store"
    return TokenCreated(**views.resource(Token, row).model_dump(), token=secret)


@router.get("")
async def list_tokens(caller: Admin, session: ReadingDep, window: WindowDep) -> Page[Token]:
    """List all tokens without their secrets, newest first."""
    return views.page(Token, await tokens.page(session, window))


@router.get("/self", responses=problems(404))
async def get_own_token(caller: AnyCaller, session: ReadingDep) -> Token:
    """Get the token with which this request was sent: its role, subject and expiry."""
    return views.resource(Token, await tokens.get(session, _own(caller)))


@router.delete("/self", status_code=204, responses=problems(404, 409))
async def revoke_own_token(caller: Viewer, database: DatabaseDep) -> None:
    """Revoke the token with which this request was sent."""
    async with database.transaction(by=caller.actor) as session:
        await tokens.revoke(session, _own(caller))


@router.post("/self/rotate", status_code=201, dependencies=[Depends(refuse_key)], responses=problems(404))
async def rotate_own_token(
    caller: AnyCaller,
    database: DatabaseDep,
    response: Response,
    overlap_s: Annotated[
        int, Query(ge=0, le=_OVERLAP_S, description="Seconds for which the old token remains valid; 0 revokes it.")
    ] = 0,
    renewal: Annotated[
        bool,
        Query(
            description="For agents, which replace their own token: a token of an earlier renewal that was never used "
            "is revoked and replaced again."
        ),
    ] = False,
) -> TokenCreated:
    """Replace the token with which this request was sent. Only this response contains the new secret."""
    async with database.transaction(by=caller.actor) as session:
        row, secret = await tokens.rotate(session, _own(caller), overlap_s=overlap_s, renewal=renewal)
    response.headers["Location"] = f"{API}/tokens/{row.id}"
    response.headers["Cache-Control"] = "no-store"
    return TokenCreated(**views.resource(Token, row).model_dump(), token=secret)


@router.delete("/{token}", status_code=204, responses=problems(409))
async def revoke_token(token: TokenPath, caller: Admin, database: DatabaseDep) -> None:
    """Revoke a token immediately and permanently."""
    async with database.transaction(by=caller.actor) as session:
        await tokens.revoke(session, token)


def _own(caller: Principal) -> str:
    if caller.token is None:
        raise NotFound("This request has no token: authentication is disabled.")
    return caller.token


@audit_router.get("")
async def list_audit(
    caller: Admin,
    session: ReadingDep,
    window: NumberWindowDep,
    subject: Annotated[str | None, Query(max_length=100, pattern=TEXT, description="Who sent the request.")] = None,
    action: Annotated[
        str | None,
        Query(
            max_length=100, pattern=TEXT, description="An action (`job.create`) or its first part (`job`, `DELETE`)."
        ),
    ] = None,
    outcome: Annotated[Literal["allowed", "denied"] | None, Query()] = None,
    since: Annotated[Moment | None, Query(description="Only entries at this time or later.")] = None,
    until: Annotated[Moment | None, Query(description="Only entries before this time.")] = None,
) -> Page[AuditEntry]:
    """List the audit log: accepted and refused requests, newest first."""
    which = audit.Filter(subject, action, outcome, since, until)
    return views.page(AuditEntry, await audit.page(session, window, which))


@session_router.get("")
async def list_sessions(
    caller: Admin, session: ReadingDep, window: WindowDep, subject: Annotated[str | None, _SUBJECT] = None
) -> Page[Session]:
    """List the browsers that are signed in, newest first."""
    return views.page(Session, await sessions.page(session, window, subject=subject))


@session_router.delete("")
async def end_sessions(caller: Admin, database: DatabaseDep, subject: Annotated[str, _SUBJECT]) -> EndedSessions:
    """End all sessions of a subject at once. Its API tokens remain valid."""
    async with database.transaction(by=caller.actor) as session:
        return EndedSessions(ended=await sessions.end_all(session, subject))


@session_router.delete("/{session}", status_code=204)
async def end_session(session_id: SessionPath, caller: Admin, database: DatabaseDep) -> None:
    """End a session at once."""
    async with database.transaction(by=caller.actor) as session:
        await sessions.end(session, session_id)


@code_router.post("", status_code=201, dependencies=[Depends(refuse_key)], responses=problems(404, 409))
async def create_sign_in_code(caller: Viewer, database: DatabaseDep, response: Response) -> SignInCode:
    """Create a code for the link `/signin#code=…`, which signs a browser in once, within a minute.

    The browser's session has the rights of the token with which this request was sent, and ends with it.
    """
    async with database.transaction(by=caller.actor) as session:
        code, expires_at = await sign_in_codes.create(session, caller.token)
    response.headers["Cache-Control"] = "no-store"
    return SignInCode(code=code, expires_at=expires_at)
