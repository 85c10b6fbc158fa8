"""Counts and times all requests, for Prometheus."""

from __future__ import annotations

import time
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# From a read of one row to a long poll.
_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# A client cannot create further values of the label.
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_NO_ROUTE: Final = "none"


def request_metrics(registry: CollectorRegistry) -> tuple[Histogram, Gauge]:
    """Return the duration of requests, and the number of those in progress, as new metrics of `registry`."""
    durations = Histogram(
        "clonos_api_request_duration_seconds",
        "Time until the response to a request begins.",
        ["method", "route", "status"],
        registry=registry,
        buckets=_BUCKETS_S,
    )
    in_progress = Gauge(
        "clonos_api_requests_in_progress", "Requests whose response is not complete.", registry=registry
    )
    return durations, in_progress


class RequestMetrics:
    """Middleware that measures the time until a response begins: an event stream counts once, when it opens.

    A request that is refused before its route is known has the route ``none``, and one that ends without a response
    has the status ``none``.
    """

    def __init__(self, app: ASGIApp, *, registry: CollectorRegistry) -> None:
        self._app = app
        self._durations, self._in_progress = request_metrics(registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Measure one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, seen = time.perf_counter(), False

        def observe(status: str) -> None:
            nonlocal seen
            seen = True
            method = scope["method"] if scope["method"] in _METHODS else "other"
            route = getattr(scope.get("route"), "path", _NO_ROUTE)
            self._durations.labels(method, route, status).observe(time.perf_counter() - begun)

        async def measured(message: Message) -> None:
            if message["type"] == "http.response.start" and not seen:
                observe(str(message["status"]))
            await send(message)

        with self._in_progress.track_inprogress():
            try:
                await self._app(scope, receive, measured)
            finally:
                if not seen:
                    observe("none")
