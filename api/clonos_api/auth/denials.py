"""Writes refused requests to the audit log. The store itself records allowed changes, in their transaction."""

from __future__ import annotations

import re
from typing import Final

import structlog
from fastapi import Request

from clonos.errors import DatabaseUnavailable, RequestRejected
from clonos_api.auth.principal import Principal
from clonos_api.store import audit
from clonos_api.store.db.database import Actor, Database

NOBODY: Final = "(nobody)"
_TOKEN_ID: Final = re.compile(r"clonos_([A-Za-z0-9]{1,16})_")

_log = structlog.get_logger(__name__)


async def record_denied(request: Request, error: RequestRejected) -> None:
    """Record a refused request of a known principal; `clonos_api.http.problems.install` calls this."""
    principal = request.scope.get("clonos.principal")
    actor = principal.actor if isinstance(principal, Principal) else Actor(NOBODY)
    await _record(request.app.state.database, actor, request, {"error": error.slug, "what": error.what})


async def record_unauthenticated(database: Database, request: Request, address: str, presented: str) -> None:
    """Record a refused request without a valid token. Only the token's id is stored, which is not secret."""
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
    except DatabaseUnavailable as error:
        # The request is refused in any case; without the database the log has the only record.
        _log.warning(
            "a refusal could not be written into the audit log", subject=actor.subject, **detail, why=error.what
        )
