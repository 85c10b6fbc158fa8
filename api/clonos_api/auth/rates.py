"""Rates of requests: token buckets in bounded memory, and the pace of refusals.

The library `limits` offers windows, not token buckets, and does not bound the number of keys.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Set

from starlette.types import ASGIApp, Receive, Scope, Send

from clonos.errors import TooManyRequests
from clonos.resources.service import Role
from clonos_api.auth.principal import Principal
from clonos_api.http.problems import problem_response


class Buckets:
    """A rate limiter with one token bucket per key: `rate` requests a second on average, `burst` at once.

    If there are more than `keys` buckets, the least recently used one is dropped.
    """

    def __init__(
        self, *, rate: float, burst: int, keys: int = 10_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._keys = keys
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> float:
        """Count one request of `key`; returns 0 if it is allowed, else the seconds until the next one is."""
        now = self._clock()
        left = self._left_at(key, now)
        granted = left >= 1
        self._left[key] = (left - 1 if granted else left, now)
        self._left.move_to_end(key)
        if len(self._left) > self._keys:
            self._left.popitem(last=False)
        return 0.0 if granted else (1 - left) / self._rate

    def wait_s(self, key: str) -> float:
        """Return what `take` would return now; it counts no request."""
        left = self._left_at(key, self._clock())
        return 0.0 if left >= 1 else (1 - left) / self._rate

    def is_low(self, key: str) -> bool:
        """Whether `key` has used most of its burst: it sends about as many requests as it may."""
        return self._left_at(key, self._clock()) < self._burst / 2

    def _left_at(self, key: str, now: float) -> float:
        left, at = self._left.get(key, (float(self._burst), now))
        return min(float(self._burst), left + (now - at) * self._rate)

    def __len__(self) -> int:
        return len(self._left)


def address_of(scope: Scope) -> str:
    """Return the client of a request as a rate-limit key: its IPv4 address, or the /64 network of its IPv6 address."""
    client = scope.get("client")
    try:
        address = ipaddress.ip_address(client[0] if client else "")
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(address)


class Refusals:
    """The pace of refusals with 429: the first ones of a caller come at once, later ones about `slow_s` seconds late.

    A refusal is cheap. But a caller that does not stop, with hundreds of connections, would otherwise have thousands of
    them a second, and the service no time for others.
    """

    def __init__(self, *, rate: float, burst: int, slow_s: float = 5.0) -> None:
        self._quick = Buckets(rate=rate, burst=burst)
        self._slow_s = slow_s

    async def pause(self, key: str) -> None:
        """Wait before the response with a refusal to the caller `key`, unless it is one of the first."""
        if self._quick.take(key) > 0:
            # Spread: hundreds that come back at the same moment would delay others.
            await asyncio.sleep(self._slow_s * random.uniform(0.5, 1.5))


def too_many(what: str, wait_s: float) -> tuple[TooManyRequests, dict[str, str]]:
    """Return a refusal, and its headers: the caller may repeat its request after `wait_s` seconds."""
    return TooManyRequests(what), {"Retry-After": str(max(1, math.ceil(wait_s)))}


class RateLimits:
    """Middleware after authentication: responds 429 with ``Retry-After`` to requests above the rate limit.

    The limit is per token: `hosts` for tokens of agents, `people` for others. Without a token it is per address, except
    for the exact paths `unlimited`.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        people: Buckets,
        hosts: Buckets,
        refusals: Refusals,
        unlimited: Set[str] = frozenset(),
    ) -> None:
        self._app = app
        self._people = people
        self._agents = hosts
        self._refusals = refusals
        self._unlimited = unlimited

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and scope["path"] not in self._unlimited:
            principal = scope.get("clonos.principal")
            if isinstance(principal, Principal):
                key, buckets = principal.token, self._agents if principal.role is Role.AGENT else self._people
            else:
                key, buckets = address_of(scope), self._people
            wait_s = buckets.take(key)
            if wait_s > 0:
                await self._refusals.pause(key)
                error, headers = too_many("Too many requests from this token or address.", wait_s)
                await problem_response(error, instance=scope["path"], headers=headers)(scope, receive, send)
                return
        await self._app(scope, receive, send)
