"""Refusals in the audit log; what was allowed is there from the store, in the transaction of the change."""

from __future__ import annotations

import re
from typing import Final

import structlog
from fastapi import Request

from clonos.errors import RequestRefused, StoreAway
from clonos_api.auth.principal import Principal
from clonos_api.store import audit
from clonos_api.store.database import Actor, Database

NOBODY: Final = "(nobody)"
_TOKEN_ID: Final = re.compile(r"clonos_([A-Za-z0-9]{1,16})_")

_log = structlog.get_logger(__name__)


async def record_denied(request: Request, error: RequestRefused) -> None:
    """Somebody known was refused: for `clonos_api.problems.install`."""
    principal = request.scope.get("clonos.principal")
    actor = principal.actor if isinstance(principal, Principal) else Actor(NOBODY)
    await _record(request.app.state.database, actor, request, {"error": error.slug, "what": error.what})


async def record_unauthenticated(database: Database, request: Request, address: str, presented: str) -> None:
    """Somebody without a valid token was refused. Of the token only its id is kept, which is no secret."""
    match = _TOKEN_ID.match(presented)
    actor = Actor(NOBODY, match[1] if match else None)
    await _record(database, actor, request, {"error": "unauthenticated", "address": address})


async def _record(database: Database, actor: Actor, request: Request, detail: dict[str, str]) -> None:
    try:
        async with database.transaction() as session:
            await audit.record(
                session,
                actor,
                f"{request.method} {request.url.path[:60]}"[:100],
                request.url.path[:255],
                outcome="denied",
                detail=detail,
            )
    except StoreAway as error:
        # The refusal stands; it is told where it still can be.
        _log.warning(
            "a refusal could not be written into the audit log", subject=actor.subject, **detail, why=error.what
        )
