"""Tokens, and who did what with them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from clonos.errors import NotFound
from clonos.resources.base import Page
from clonos.resources.service import AuditEntry, Token, TokenCreate, TokenCreated
from clonos_api import views
from clonos_api.bodies import Limit, StartingAfter, page
from clonos_api.documented import problems
from clonos_api.idempotency import refuse_key
from clonos_api.routes.access import API, Admin, Viewer
from clonos_api.services import Store
from clonos_api.store import audit, tokens

router = APIRouter(prefix=f"{API}/tokens", tags=["tokens"])
audit_router = APIRouter(prefix=f"{API}/audit", tags=["audit"])

TokenPath = Annotated[str, Path(min_length=1, max_length=16, description="Id of a token.")]


@router.post("", status_code=201, dependencies=[refuse_key()])
async def create_token(body: TokenCreate, caller: Admin, store: Store, response: Response) -> TokenCreated:
    """Make a token. Its secret is in this answer and nowhere else."""
    async with store.transaction(by=caller.actor) as session:
        row, secret = await tokens.create(session, body)
    response.headers["Location"] = f"{API}/tokens/{row.id}"
    response.headers["Cache-Control"] = "no-store"
    return TokenCreated(**views.token(row).model_dump(), token=secret)


@router.get("")
async def list_tokens(
    caller: Admin, store: Store, limit: Limit = 50, starting_after: StartingAfter = None
) -> Page[Token]:
    """All tokens, newest first; without their secrets."""
    async with store.reading() as session:
        found = await tokens.page(session, limit=limit, starting_after=starting_after)
    return page(map(views.token, found.rows), found.next)


@router.get("/self", responses=problems(404))
async def get_own_token(caller: Viewer, store: Store) -> Token:
    """The token that this request came with."""
    if caller.token is None:
        raise NotFound("This request came without a token: the service runs without.")
    async with store.reading() as session:
        return views.token(await tokens.get(session, caller.token))


@router.delete("/{token}", status_code=204, responses=problems(409))
async def revoke_token(token: TokenPath, caller: Admin, store: Store) -> None:
    """Revoke a token, at once and for good."""
    async with store.transaction(by=caller.actor) as session:
        await tokens.revoke(session, token)


@audit_router.get("")
async def list_audit(
    caller: Admin, store: Store, limit: Limit = 50, starting_after: StartingAfter = None
) -> Page[AuditEntry]:
    """Who did what, or was refused; newest first."""
    async with store.reading() as session:
        found = await audit.page(session, limit=limit, starting_after=starting_after)
    return page(map(views.audit_entry, found.rows), found.next)
