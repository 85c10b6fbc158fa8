"""Agents that were let in a moment ago: they ask several times a second, so the store is not asked each time.

People's tokens are not remembered. A revoked token is forgotten as soon as this replica hears of it from the events
(its own: at once, another replica's: within 250 ms), and whatever happens after five seconds.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from clonos.resources.service import Event, Role
from clonos_api.auth.principal import Principal

_FOR_S: Final = 5.0
_MOST: Final = 10_000
_REVOKED: Final = 1_000


class KnownAgents:
    """Tokens of agents, by their digest; the texts are not kept.

    Args:
        clock: Seconds that only go up.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[float, Principal]] = OrderedDict()  # longest ago first
        # For a token that was being looked up while it was revoked.
        self._revoked: deque[str] = deque(maxlen=_REVOKED)

    def find(self, presented: str) -> Principal | None:
        """Whose token this is, if that was found out a moment ago."""
        until, principal = self._known.get(_digest(presented), (0.0, None))
        if principal is None or until < self._clock():
            return None
        if principal.expires_at is not None and principal.expires_at <= datetime.now(UTC):
            return None
        return principal

    def remember(self, presented: str, principal: Principal) -> None:
        """This was found out now."""
        if principal.role is not Role.AGENT or principal.token in self._revoked:
            return
        digest = _digest(presented)
        self._known.pop(digest, None)
        self._known[digest] = (self._clock() + _FOR_S, principal)
        while len(self._known) > _MOST:
            self._known.popitem(last=False)

    def hear(self, event: Event) -> None:
        """Forget a token that is revoked."""
        if event.type == "token.revoked":
            token = str(event.data.get("token"))
            self._revoked.append(token)
            for digest in [digest for digest, (_, principal) in self._known.items() if principal.token == token]:
                del self._known[digest]


def _digest(presented: str) -> bytes:
    return hashlib.sha256(presented.encode()).digest()
