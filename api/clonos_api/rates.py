"""How many requests one may send: token buckets, in bounded memory."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from clonos.errors import TooMany
from clonos.resources.service import Role
from clonos_api.auth.principal import Principal
from clonos_api.problems import problem_response


class Buckets:
    """One bucket for each key. Of more keys than fit, those that were not used for longest start full again.

    Args:
        rate: Requests a second, on average.
        burst: Requests at once.
        keys: Keys that are remembered.
        clock: Seconds that only go up.
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
        """Take one. Returns how many seconds to wait until there is one again; 0: it was there."""
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
    """Who sends, as one key: an IPv4 address, or the /64 network of an IPv6 one, of which anybody has plenty."""
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
    """Middleware after authentication: 429 with ``Retry-After`` for whoever sends too many.

    Args:
        app: What comes after.
        people: For each token of people, and for each address that needs no token.
        agents: For each agent's token.
    """

    def __init__(self, app: ASGIApp, *, people: Buckets, agents: Buckets) -> None:
        self._app = app
        self._people = people
        self._agents = agents

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "http":
            principal = scope.get("clonos.principal")
            if isinstance(principal, Principal):
                buckets = self._agents if principal.role is Role.AGENT else self._people
                wait_s = buckets.take(principal.token)
            else:
                wait_s = self._people.take(address_of(scope))
            if wait_s > 0:
                error = TooMany("This token, or this address, sends more requests than it may.")
                headers = {"Retry-After": str(math.ceil(wait_s))}
                await problem_response(error, instance=scope["path"], headers=headers)(scope, receive, send)
                return
        await self._app(scope, receive, send)
