"""Authentication middleware. It runs before routes are matched and before the body is read.

So an unknown path also gets 401, and a path that merely resembles an exempt one is not exempt.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from clonos.errors import ClonosError, Unauthenticated
from clonos.resources.service import Role
from clonos_api.auth.cookies import cookie_of, cookie_token, is_visit, presented
from clonos_api.auth.denials import record_unauthenticated
from clonos_api.auth.known_agents import KnownAgents
from clonos_api.auth.principal import Principal
from clonos_api.auth.rates import Buckets, Refusals, address_of, too_many
from clonos_api.auth.recent_tokens import RecentTokens
from clonos_api.auth.turns import SharedTurns
from clonos_api.auth.valid_tokens import ValidTokens
from clonos_api.http.problems import answer, problem_of
from clonos_api.http.sub_path import prefix_of
from clonos_api.store import tokens
from clonos_api.store.db.database import Database

# Exact paths only.
EXEMPT: Final = frozenset({"/health/live", "/health/ready"})
# The principal of requests without a token if authentication is off: the user of this machine.
LOCAL: Final = Principal("local", "local", Role.ADMIN)
_LONGEST: Final = 200
_INVALID: Final = "check that the whole token was copied, and that it has neither expired nor been revoked."
_FAILURES: Final = "Too many requests without a valid token from this address."
# Tokens of one caller that are read from the store at once. It is less than the number of connections.
_LOOKUPS: Final = 2


class _Refused(Exception):
    """The request gets 429: too many failures of its address, or too many requests of its token."""

    def __init__(self, what: str, wait_s: float, key: str) -> None:
        super().__init__(what)
        self.what = what
        self.wait_s = wait_s
        self.key = key


class Authentication:
    """Middleware: responds 401 without a valid token; otherwise sets `scope["clonos.principal"]`.

    Each request reads the token from the store, so that a revoked token is refused at once. `KnownAgents` caches the
    tokens of agents. The store is not asked about a token that has too many requests. If an address has too many
    failures, the store is asked only about its tokens that were valid recently, by `RecentTokens` or `ValidTokens`.

    Args:
        app: The next application.
        database: The database with the tokens.
        known: Cache of agents' tokens.
        failures: Rate limit of failed requests per address; further ones get 429.
        people: Rate limit of the tokens of users, which `RateLimits` counts.
        refusals: Pace of responses with 429.
        open_paths: Exact paths that need no token, besides the health routes.
        open_files: Path prefixes whose files can be read without a token.
        sign_in: Path to which browsers without a token are redirected.
        needed: Whether requests without a token are refused.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        database: Database,
        known: KnownAgents,
        failures: Buckets,
        people: Buckets,
        refusals: Refusals,
        needed: bool = True,
        open_paths: Set[str] = frozenset(),
        open_files: tuple[str, ...] = (),
        sign_in: str | None = None,
    ) -> None:
        self._app = app
        self._database = database
        self._known = known
        self._failures = failures
        self._people = people
        self._refusals = refusals
        self._recent = RecentTokens()
        self._valid = ValidTokens(lambda: tokens.digests(database))
        self._lookups = SharedTurns(_LOOKUPS)
        self._needed = needed
        self._open = EXEMPT | open_paths
        self._open_files = open_files
        self._sign_in = sign_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan" or (scope["type"] == "http" and self._is_open(scope)):
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})  # there are no websockets
            return
        request = Request(scope)
        try:
            if self._needed and self._sign_in is not None and is_visit(request) and not _has_token(request):
                raise Unauthenticated("The request has no token.")  # a followed link does not count as a failure
            scope["clonos.principal"] = await self._principal(request)
        except _Refused as refused:
            await self._refusals.pause(refused.key)
            error, headers = too_many(refused.what, refused.wait_s)
            await answer(request, problem_of(error, instance=scope["path"]), headers)(scope, receive, send)
            return
        except ClonosError as error:
            if isinstance(error, Unauthenticated) and self._sign_in is not None and is_visit(request):
                to = f"{self._sign_in}?{urlencode({'next': _path_of(request)})}"
                await RedirectResponse(to, 303)(scope, receive, send)
                return
            await answer(request, problem_of(error, instance=scope["path"]))(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        path = scope["path"]
        files = scope["method"] in ("GET", "HEAD") and path.startswith(self._open_files)
        return files or path in self._open

    async def _principal(self, request: Request) -> Principal:
        authorization = request.headers.getlist("authorization")
        if not authorization and not self._needed:
            return LOCAL
        token = presented(authorization) if authorization else cookie_token(request)
        if 0 < len(token) <= _LONGEST and token.isascii():
            known = self._known.find(token)
            if known is not None:
                return known
            principal = await self._looked_up(token, address_of(request.scope))
            if principal is not None:
                return principal
        await self._refuse(request, token)
        if authorization or token:
            raise Unauthenticated("The token is not valid.", hint=_INVALID)
        raise Unauthenticated("The request has no token.")

    async def _looked_up(self, token: str, address: str) -> Principal | None:
        """Return the principal of a token, from the store; raise `_Refused` if the store must not be asked."""
        recent = self._recent.find(token)
        if recent is None and self._failures.wait_s(address) == 0:
            async with self._lookups.of(address):
                # While one caller waits, others of it use up the rest of its bucket: it is asked again.
                if self._failures.wait_s(address) == 0:
                    return await self._read(token)
        recent = recent or await self._valid.find(token)
        if recent is None:
            raise _Refused(_FAILURES, self._failures.wait_s(address), address)
        self._check_rate(recent)
        async with self._lookups.of(recent):
            self._check_rate(recent)
            principal = await self._read(token)
        if principal is None:
            self._valid.forget(recent)
        return principal

    async def _read(self, token: str) -> Principal | None:
        row = await tokens.authenticate(self._database, token)
        if row is None:
            self._recent.forget(token)
            return None
        principal = Principal(row.id, row.subject, Role(row.role), row.host, row.expires_at)
        self._known.remember(token, principal)
        self._recent.remember(token, row.id)
        return principal

    def _check_rate(self, token: str) -> None:
        if (wait_s := self._people.wait_s(token)) > 0:
            raise _Refused("Too many requests from this token.", wait_s, token)

    async def _refuse(self, request: Request, presented: str) -> None:
        address = address_of(request.scope)
        wait_s = self._failures.take(address)
        if wait_s > 0:
            raise _Refused(_FAILURES, wait_s, address)
        # The rate limit also bounds the audit log.
        await record_unauthenticated(self._database, request, address, presented)


def _path_of(request: Request) -> str:
    return prefix_of(request) + request.url.path + (f"?{request.url.query}" if request.url.query else "")


def _has_token(request: Request) -> bool:
    return "authorization" in request.headers or cookie_of(request) in request.cookies
