"""Writes refused requests to the audit log. The store itself records allowed changes, in their transaction.

Equal refusals within a minute share one entry, which counts them: a caller cannot fill the log. To keep the number of
writes small, the entry has the newest power of two of the count.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

import structlog
from fastapi import Request

from clonos.errors import AgentReplaced, ClonosError, DatabaseUnavailable, RequestRejected
from clonos.telemetry.printable import printable
from clonos_api.auth.principal import Principal
from clonos_api.store import audit, hosts
from clonos_api.store.db.database import Actor, Database

NOBODY: Final = "(nobody)"
_TOKEN_ID: Final = re.compile(r"clonos_([A-Za-z0-9]{1,16})_")

_WINDOW_S: Final = 60.0
_REMEMBERED: Final = 10_000


@dataclass
class _Repeated:
    """Equal refusals since `since` (monotonic): their number, and the number of their entry (0: not written yet)."""

    since: float
    requests: int = 0
    entry: int = 0


_recent: WeakKeyDictionary[Database, OrderedDict[tuple[str | None, ...], _Repeated]] = WeakKeyDictionary()
_log = structlog.get_logger(__name__)


async def record_denied(request: Request, error: ClonosError) -> None:
    """Record a refused request of a known principal; `clonos_api.http.problems.install` calls this.

    The host of a replaced agent gets an alert: two processes have its token.
    """
    principal = request.scope.get("clonos.principal")
    actor = principal.actor if isinstance(principal, Principal) else Actor(NOBODY)
    host = request.path_params.get("host") if isinstance(error, AgentReplaced) else None
    detail = {"error": error.slug, "what": error.what}
    await _record(request.app.state.database, actor, request, detail, contested=host)


async def record_unauthenticated(database: Database, request: Request, address: str, presented: str) -> None:
    """Record a refused request without a valid token. Only the token's id is stored, which is not secret."""
    match = _TOKEN_ID.match(presented)
    actor = Actor(NOBODY, match[1] if match else None)
    await _record(database, actor, request, {"error": "unauthenticated", "address": address})


async def record_failed_sign_in(database: Database, request: Request, error: RequestRejected, address: str) -> None:
    """Record a sign-in through the identity provider that was refused."""
    await _record(database, Actor(NOBODY), request, {"error": error.slug, "what": error.what, "address": address})


async def _record(
    database: Database, actor: Actor, request: Request, detail: dict[str, str], *, contested: str | None = None
) -> None:
    # A path may have any character: nobody needs a token to write one here.
    path = printable(" ".join(request.url.path[:255].splitlines()))
    detail = {name: printable(text) for name, text in detail.items()}
    action = f"{request.method} {path[:60]}"[:100]
    repeated = _counted(database, (actor.subject, actor.token, action, detail["error"], detail.get("address")))
    if repeated.requests & (repeated.requests - 1):
        return  # no power of two
    try:
        async with database.transaction() as session:
            if contested is not None:
                await hosts.note_rival(session, contested)
            if repeated.entry:
                await audit.count(session, repeated.entry, repeated.requests)
                return
            row = await audit.record(session, actor, action, path, outcome="denied", detail=detail)
            await session.flush()
            repeated.entry = row.seq
    except DatabaseUnavailable as error:
        # The request is refused in any case; without the database the log has the only record.
        _log.warning(
            "a refusal could not be written into the audit log", subject=actor.subject, **detail, why=error.what
        )


def _counted(database: Database, key: tuple[str | None, ...]) -> _Repeated:
    recent = _recent.setdefault(database, OrderedDict())
    now = time.monotonic()
    repeated = recent.get(key)
    if repeated is None or now - repeated.since > _WINDOW_S:
        repeated = recent[key] = _Repeated(now)
        recent.move_to_end(key)
        while len(recent) > _REMEMBERED:
            recent.popitem(last=False)
    repeated.requests += 1
    return repeated
