"""The middlewares in their order: the cheapest refusal first, and no body is read of whoever is not known."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Final

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from clonos_api import idempotency
from clonos_api.auth.authentication import Authentication
from clonos_api.auth.denials import record_denied
from clonos_api.guards.bodies import BodyLimits
from clonos_api.guards.envelope import HEADER, Envelope
from clonos_api.guards.hosts import HostCheck
from clonos_api.rates import Buckets, RateLimits
from clonos_api.settings import ApiSettings
from clonos_api.store.database import Database

UPLOAD: Final = "/api/v1/artifacts"
_AGENTS: Final = "/api/v1/agents/"


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """What the guards let through.

    Attributes:
        hosts: Names that the service may be called by, besides the loopback ones.
        origins: Origins whose pages may call, besides the service's own.
        tls: Whether connections are TLS.
        auth: Whether a token is needed; False: whoever has none is a local admin.
        body_bytes: Of most bodies.
        upload_bytes: Of uploaded code.
        push_bytes: Of what agents push.
        requests_per_s: Of one token, on average.
        burst: Of one token, at once.
        agent_requests_per_s: Of one agent: a heartbeat, a long-poll, and two pushes for each of its runs.
        agent_burst: Of one agent, at once: after an outage it has much to tell.
        failures_per_s: Requests of one address without a valid token that get an answer other than 429.
        failures_burst: The same, at once.
    """

    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    tls: bool = False
    auth: bool = True
    body_bytes: int = 1_000_000
    upload_bytes: int = 50_000_000
    push_bytes: int = 8_000_000
    requests_per_s: float = 50.0
    burst: int = 200
    agent_requests_per_s: float = 200.0
    agent_burst: int = 1_000
    failures_per_s: float = 1.0
    failures_burst: int = 30

    @classmethod
    def of(cls, settings: ApiSettings) -> GuardSettings:
        """As the service is configured."""
        limits = settings.limits
        own = f"[{settings.host}]" if ":" in settings.host else settings.host
        return cls(
            hosts=[own, *settings.allowed_hosts],
            origins=settings.allowed_origins,
            tls=settings.scheme == "https",
            auth=settings.auth,
            body_bytes=limits.body_bytes,
            # Around the file are the form's boundaries.
            upload_bytes=limits.artifact_bytes + 10_000,
            requests_per_s=limits.requests_per_s,
            burst=limits.burst,
            failures_per_s=limits.failures_per_s,
            failures_burst=limits.failures_burst,
        )


def install(
    app: FastAPI,
    settings: GuardSettings,
    *,
    open_paths: Set[str] = frozenset(),
    open_files: str | None = None,
    sign_in: str | None = None,
) -> None:
    """Put the guards in front of all routes of `app`, those to come included.

    Args:
        app: The application; `app.state.database` is where the tokens are, `app.state.known_agents` who was let in.
        settings: What they let through.
        open_paths: Exact paths that need no token, besides those of health.
        open_files: What is below this path needs none for reading.
        sign_in: Where browsers without a token are sent from a page.
    """
    database: Database = app.state.database
    app.state.agent_names = OrderedDict()
    app.state.denied = record_denied
    idempotency.install(app)
    # The last that is added is the first that a request meets.
    app.add_middleware(BodyLimits, limit=_body_limit(settings))
    app.add_middleware(
        RateLimits,
        people=Buckets(rate=settings.requests_per_s, burst=settings.burst),
        agents=Buckets(rate=settings.agent_requests_per_s, burst=settings.agent_burst),
    )
    app.add_middleware(
        Authentication,
        database=database,
        known=app.state.known_agents,
        failures=Buckets(rate=settings.failures_per_s, burst=settings.failures_burst),
        needed=settings.auth,
        open_paths=open_paths,
        open_files=open_files,
        sign_in=sign_in,
    )
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.origins),
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "If-Match", "Last-Event-ID"],
            expose_headers=["ETag", "Location", "Retry-After", HEADER],
        )
    app.add_middleware(HostCheck, hosts=settings.hosts, origins=settings.origins)
    app.add_middleware(Envelope, tls=settings.tls)


def _body_limit(settings: GuardSettings) -> Callable[[str, str], int]:
    def limit(method: str, path: str) -> int:
        if method == "POST" and path == UPLOAD:
            return settings.upload_bytes
        return settings.push_bytes if path.startswith(_AGENTS) else settings.body_bytes

    return limit
