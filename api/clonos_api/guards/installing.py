"""Installs the middleware in order: the cheapest check first, and no body is read before authentication."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Set
from typing import Final

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from clonos_api.auth.authentication import Authentication
from clonos_api.auth.denials import record_denied
from clonos_api.auth.rates import Buckets, RateLimits, Refusals
from clonos_api.auth.turns import Turns
from clonos_api.guards import idempotency
from clonos_api.guards.bodies import BodyLimits
from clonos_api.guards.conditional import ConditionalGet
from clonos_api.guards.envelope import HEADER, Envelope
from clonos_api.guards.hosts import HostCheck
from clonos_api.guards.request_metrics import RequestMetrics
from clonos_api.http.limited_protocol import Network
from clonos_api.http.sub_path import SubPath
from clonos_api.settings import ApiSettings, Limits
from clonos_api.store.db.database import Database

UPLOAD: Final = "/api/v1/artifacts"
# Uploads, and the analysis of their code.
_SLOW: Final = frozenset({UPLOAD, "/api/v1/jobs/validate"})
_PUSH: Final = re.compile(r"/api/v1/hosts/[^/]+/push")


# An agent sends a heartbeat, a long poll and two pushes per run, and more pushes after an outage.
_AGENT_REQUESTS_PER_S: Final = 200.0
_AGENT_BURST: Final = 1_000
# Refusals of one caller at once; later ones are delayed.
_REFUSALS_PER_S: Final = 5.0
_REFUSALS_BURST: Final = 100
_LINK: Final = "/session/link"  # needs no token
_LINK_BYTES: Final = 1_000
_PUSH_BYTES: Final = 8_000_000
_FORM_BYTES: Final = 10_000  # the form's boundaries around an uploaded file


def install(
    app: FastAPI,
    settings: ApiSettings,
    *,
    open_paths: Set[str] = frozenset(),
    open_files: tuple[str, ...] = (),
    sign_in: str | None = None,
) -> None:
    """Install the middleware of `clonos_api.guards` and `clonos_api.auth` for all routes of `app`, also later ones.

    `open_paths` and the files below the prefixes `open_files` need no token. Browsers without one
    are sent to `sign_in`.
    """
    database: Database = app.state.database
    limits = settings.limits
    own = f"[{settings.host}]" if ":" in settings.host else settings.host
    app.state.host_names = OrderedDict()
    app.state.denied = record_denied
    app.state.failures = failures = Buckets(rate=limits.failures_per_s, burst=limits.failures_burst)
    idempotency.install(app)
    # The middleware that is added last runs first.
    app.add_middleware(ConditionalGet)
    app.add_middleware(BodyLimits, limit=_body_limit(limits))
    people = Buckets(rate=limits.requests_per_s, burst=limits.burst)
    app.add_middleware(
        Turns,
        people=people,
        at_once=limits.requests_at_once,
        slow_at_once=limits.slow_at_once,
        slow_kind=lambda scope: scope["path"] if scope["method"] == "POST" and scope["path"] in _SLOW else "",
    )
    refusals = Refusals(rate=_REFUSALS_PER_S, burst=_REFUSALS_BURST)
    app.add_middleware(
        RateLimits,
        people=people,
        hosts=Buckets(rate=_AGENT_REQUESTS_PER_S, burst=_AGENT_BURST),
        refusals=refusals,
        unlimited=frozenset({"/health/live"}),  # a process that is asked too often is alive
    )
    app.add_middleware(
        Authentication,
        database=database,
        known=app.state.known_agents,
        failures=failures,
        people=people,
        refusals=refusals,
        needed=settings.auth,
        open_paths=open_paths,
        open_files=open_files,
        sign_in=sign_in,
    )
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=[
                "Authorization",
                "Content-Type",
                "Idempotency-Key",
                "If-Match",
                "If-None-Match",
                "Last-Event-ID",
            ],
            expose_headers=["ETag", "Location", "Retry-After", HEADER],
        )
    app.add_middleware(HostCheck, hosts=[own, *settings.allowed_hosts], origins=settings.allowed_origins)
    app.add_middleware(Envelope, tls=settings.scheme == "https")
    app.add_middleware(RequestMetrics, registry=app.state.registry)
    if settings.trusted_proxies:
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=_with_mapped(settings.trusted_proxies))
    if settings.prefix or settings.trusted_proxies:  # outside of the previous one, which replaces the proxy's address
        app.add_middleware(SubPath, prefix=settings.prefix, proxies=settings.trusted_proxies)


def _with_mapped(networks: Collection[Network]) -> list[str]:
    """Networks as text; IPv4 networks also as a socket for both versions shows them (``::ffff:10.0.0.0/120``)."""
    return [str(network) for network in networks] + [
        f"::ffff:{network.network_address}/{96 + network.prefixlen}" for network in networks if network.version == 4
    ]


def _body_limit(limits: Limits) -> Callable[[str, str], int]:
    def limit(method: str, path: str) -> int:
        if method == "POST" and path == UPLOAD:
            return limits.artifact_bytes + _FORM_BYTES
        if path == _LINK:
            return _LINK_BYTES
        return _PUSH_BYTES if _PUSH.fullmatch(path) else limits.body_bytes

    return limit
