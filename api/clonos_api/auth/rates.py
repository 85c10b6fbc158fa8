"""Limits of requests: token buckets in bounded memory, a number of requests at once, and a pace of refusals.

The library `limits` offers windows, not token buckets, and does not bound the number of keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Set
from typing import Final
from weakref import WeakValueDictionary

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clonos.errors import TooManyRequests
from clonos.resources.service import Role
from clonos_api.auth.principal import Principal
from clonos_api.http.problems import problem_response

_RECENT_S: Final = 1.0


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
        """What `take` would return now; it counts no request."""
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


class SharedTurns:
    """At most `at_once` holders of a key at once; others wait in order. Keys without holders take no memory."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, key: str) -> asyncio.Semaphore:
        """The turns of a key; keep the object while it is used."""
        turns = self._turns.get(key)
        if turns is None:
            turns = self._turns[key] = asyncio.Semaphore(self.at_once)
        return turns


def too_many(what: str, wait_s: float) -> tuple[TooManyRequests, dict[str, str]]:
    """A refusal, and its headers: the caller may repeat its request after `wait_s` seconds."""
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


class Precedence:
    """Requests of tokens that use most of their burst come after those of other tokens.

    They begin when no request of the others is in progress, or after `longest_s` seconds. As in a fair scheduler, the
    least used comes first: ten users notice little of a script that sends as many requests as it may.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._in_progress = 0
        self._none_in_progress = asyncio.Event()
        self._none_in_progress.set()
        self._newest_at = -math.inf

    @property
    def has_others(self) -> bool:
        """Whether a request with precedence began within the last second."""
        return time.monotonic() < self._newest_at + _RECENT_S

    def begin(self) -> None:
        """A request with precedence begins."""
        self._in_progress += 1
        self._newest_at = time.monotonic()
        self._none_in_progress.clear()

    def end(self) -> None:
        """A request with precedence ends."""
        self._in_progress -= 1
        if not self._in_progress:
            self._none_in_progress.set()

    async def give_way(self) -> None:
        """Wait until no request with precedence is in progress."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._longest_s):
                await self._none_in_progress.wait()


class Turns:
    """Middleware after `RateLimits`: a token has `at_once` requests in progress; others wait, at most `wait_s` seconds.

    A request is in progress until its response begins: event streams do not count. Requests of one token then cannot
    take all connections to the database. Requests of agents, which poll, and without a token are not limited.

    A token that has used most of its burst (`people`) gives way to the others (`Precedence`). Beside them it has one
    request in progress, and rests `rest_s` seconds after each.

    Slow requests have turns of their own, `slow_at_once` for each kind that `slow_kind` names: they take disk and time
    of other writers, and no other requests wait for them.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        at_once: int,
        slow_at_once: int = 1,
        slow_kind: Callable[[Scope], str] = lambda _: "",
        wait_s: float = 10.0,
        people: Buckets | None = None,
        give_way_s: float = 0.5,
        rest_s: float = 0.1,
    ) -> None:
        self._app = app
        self._turns = SharedTurns(at_once)
        self._slow_turns = SharedTurns(slow_at_once)
        self._slow_kind = slow_kind
        self._wait_s = wait_s
        self._people = people
        self._precedence = Precedence(give_way_s)
        self._low_turns = SharedTurns(1)
        self._rest_s = rest_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        principal = scope.get("clonos.principal")
        if not isinstance(principal, Principal) or principal.token is None or principal.role is Role.AGENT:
            await self._app(scope, receive, send)
            return
        kind = self._slow_kind(scope)
        low = self._people is not None and self._people.is_low(principal.token)
        first = not low and not kind
        shared = self._slow_turns if kind else self._low_turns if low else self._turns
        turns = shared.of(f"{kind} {principal.token}")
        try:
            async with asyncio.timeout(self._wait_s):
                await turns.acquire()
        except TimeoutError:
            error = TooManyRequests(f"This token has {shared.at_once} such requests in progress.")
            await problem_response(error, instance=scope["path"])(scope, receive, send)
            return
        begun = False

        def begin() -> None:
            nonlocal begun
            if not begun:
                begun = True
                if first:
                    self._precedence.end()
                if low and self._precedence.has_others:
                    asyncio.get_running_loop().call_later(self._rest_s, turns.release)
                else:
                    turns.release()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                begin()
            await send(message)

        if first:
            self._precedence.begin()
        try:
            if low:
                await self._precedence.give_way()
            await self._app(scope, receive, sending)
        finally:
            begin()
