"""The first question to every request: whose token is this? Asked before routes are looked up or a body is read.

So an unknown path is 401 too, and a path that only looks like an exempt one gains nothing.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final
from urllib.parse import urlencode

import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from clonos.errors import ClonosError, TooMany, Unauthenticated
from clonos.resources.service import Role
from clonos_api.auth.cookies import cookie_of, is_visit, kept, presented
from clonos_api.auth.denials import record_unauthenticated
from clonos_api.auth.known_agents import KnownAgents
from clonos_api.auth.principal import Principal
from clonos_api.problems import answer, problem_of
from clonos_api.rates import Buckets, address_of
from clonos_api.store import tokens
from clonos_api.store.database import Database

# By exact path, and nothing that starts or ends like one of them.
EXEMPT: Final = frozenset({"/health/live", "/health/ready"})
# Whoever has no token where none is asked for: one person on their own machine.
LOCAL: Final = Principal("local", "local", Role.ADMIN)
_LONGEST: Final = 200

_log = structlog.get_logger(__name__)


class Authentication:
    """Middleware: 401 for whoever has no valid token; `scope["clonos.principal"]` for the others.

    The store is asked each time, so that a token that is revoked is refused at once; agents': see `KnownAgents`.

    Args:
        app: What comes after.
        database: Where the tokens are.
        known: Agents that were let in a moment ago.
        failures: How often an address may be wrong before it hears 429; valid tokens do not count.
        open_paths: Exact paths that need no token, besides those of health.
        open_files: What is below this path needs none for reading.
        sign_in: Where browsers without a token are sent from a page.
        needed: Whether requests without a token are refused.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        database: Database,
        known: KnownAgents,
        failures: Buckets,
        needed: bool = True,
        open_paths: Set[str] = frozenset(),
        open_files: str | None = None,
        sign_in: str | None = None,
    ) -> None:
        self._app = app
        self._database = database
        self._known = known
        self._failures = failures
        self._needed = needed
        self._open = EXEMPT | open_paths
        self._open_files = open_files
        self._sign_in = sign_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan" or (scope["type"] == "http" and self._is_open(scope)):
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})  # there are none
            return
        request = Request(scope)
        try:
            if self._needed and self._sign_in is not None and is_visit(request) and not _has_token(request):
                raise Unauthenticated("The request has no token.")  # who follows a link here is nobody's failure
            scope["clonos.principal"] = await self._principal(request)
        except ClonosError as error:
            if isinstance(error, Unauthenticated) and self._sign_in is not None and is_visit(request):
                to = f"{self._sign_in}?{urlencode({'next': _asked(request)})}"
                await RedirectResponse(to, 303)(scope, receive, send)
                return
            await answer(request, problem_of(error, instance=scope["path"]))(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        path = scope["path"]
        files = (
            self._open_files is not None and scope["method"] in ("GET", "HEAD") and path.startswith(self._open_files)
        )
        return files or path in self._open

    async def _principal(self, request: Request) -> Principal:
        given = request.headers.getlist("authorization")
        if not given and not self._needed:
            return LOCAL
        token = presented(given) if given else kept(request)
        if 0 < len(token) <= _LONGEST and token.isascii():
            known = self._known.find(token)
            if known is not None:
                return known
            row = await tokens.authenticate(self._database, token)
            if row is not None:
                principal = Principal(row.id, row.subject, Role(row.role), row.agent, row.expires_at)
                self._known.remember(token, principal)
                return principal
        await self._refuse(request, token)
        raise Unauthenticated("The token is not valid." if given or token else "The request has no token.")

    async def _refuse(self, request: Request, presented: str) -> None:
        address = address_of(request.scope)
        wait_s = self._failures.take(address)
        if wait_s > 0:
            raise TooMany("Too many requests without a valid token came from this address.")
        # Written down only as often as they are answered: nobody fills the audit log from outside.
        await record_unauthenticated(self._database, request, address, presented)


def _asked(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def _has_token(request: Request) -> bool:
    return "authorization" in request.headers or cookie_of(request) in request.cookies
