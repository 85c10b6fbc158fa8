"""Limits of requests: token buckets in bounded memory, and a number of requests at once.

The library `limits` offers windows, not token buckets, and does not bound the number of keys.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from weakref import WeakValueDictionary

from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
        left, at = self._left.get(key, (float(self._burst), now))
        left = min(float(self._burst), left + (now - at) * self._rate)
        granted = left >= 1
        self._left[key] = (left - 1 if granted else left, now)
        self._left.move_to_end(key)
        if len(self._left) > self._keys:
            self._left.popitem(last=False)
        return 0.0 if granted else (1 - left) / self._rate

    def __len__(self) -> int:
        return len(self._left)


def address_of(scope: Scope) -> str:
    """The client of a request as a rate-limit key: its IPv4 address, or the /64 network of its IPv6 address."""
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


class RateLimits:
    """Middleware after authentication: responds 429 with ``Retry-After`` to requests above the rate limit.

    The limit is per token: `hosts` for tokens of agents, `people` for others. Without a token it is per address.
    """

    def __init__(self, app: ASGIApp, *, people: Buckets, hosts: Buckets) -> None:
        self._app = app
        self._people = people
        self._agents = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http":
            principal = scope.get("clonos.principal")
            if isinstance(principal, Principal):
                buckets = self._agents if principal.role is Role.AGENT else self._people
                wait_s = buckets.take(principal.token)
            else:
                wait_s = self._people.take(address_of(scope))
            if wait_s > 0:
                error = TooManyRequests("Too many requests from this token or address.")
                headers = {"Retry-After": str(math.ceil(wait_s))}
                await problem_response(error, instance=scope["path"], headers=headers)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class Turns:
    """Middleware after `RateLimits`: a token has `at_once` requests in progress; others wait, at most `wait_s` seconds.

    A request is in progress until its response begins: event streams do not count. Requests of one token then cannot
    take all connections to the database. Requests of agents, which poll, and without a token are not limited.
    """

    def __init__(self, app: ASGIApp, *, at_once: int, wait_s: float = 10.0) -> None:
        self._app = app
        self._at_once = at_once
        self._wait_s = wait_s
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        principal = scope.get("clonos.principal")
        if not isinstance(principal, Principal) or principal.token is None or principal.role is Role.AGENT:
            await self._app(scope, receive, send)
            return
        turns = self._turns.get(principal.token)
        if turns is None:
            turns = self._turns[principal.token] = asyncio.Semaphore(self._at_once)
        try:
            async with asyncio.timeout(self._wait_s):
                await turns.acquire()
        except TimeoutError:
            error = TooManyRequests(f"This token has {self._at_once} requests in progress.")
            await problem_response(error, instance=scope["path"])(scope, receive, send)
            return
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start" and not begun:
                begun = True
                turns.release()
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            if not begun:
                turns.release()
