"""A cache of agents' tokens: agents send several requests a second, so the store is not read each time.

Tokens of users are not cached. A revocation removes a token from the cache: of this replica at once, of another
replica within 250 ms through the events. Every entry expires after five seconds.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from clonos.resources.service import Event, Role
from clonos_api.auth.principal import Principal
from clonos_api.auth.recent_tokens import digest

_TTL_S: Final = 5.0
_MAX_ENTRIES: Final = 10_000
_MAX_REVOKED: Final = 1_000


class KnownAgents:
    """Cache of the principals of agents, keyed by the digest of their token. The tokens' texts are not stored."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[float, Principal]] = OrderedDict()  # oldest first
        # For a token that is revoked while the store is being read.
        self._revoked: deque[str] = deque(maxlen=_MAX_REVOKED)

    def find(self, presented: str) -> Principal | None:
        """Return the principal of the token `presented`; None if it is not in the cache."""
        until, principal = self._known.get(digest(presented), (0.0, None))
        if principal is None or until < self._clock():
            return None
        if principal.expires_at is not None and principal.expires_at <= datetime.now(UTC):
            return None
        return principal

    def remember(self, presented: str, principal: Principal) -> None:
        """Cache the principal of the token `presented`, if it is an agent."""
        if principal.role is not Role.AGENT or principal.token in self._revoked:
            return
        key = digest(presented)
        self._known.pop(key, None)
        self._known[key] = (self._clock() + _TTL_S, principal)
        while len(self._known) > _MAX_ENTRIES:
            self._known.popitem(last=False)

    def on_event(self, event: Event) -> None:
        """Remove a token from the cache when it is revoked."""
        if event.type == "token.revoked":
            token = str(event.data.get("token"))
            self._revoked.append(token)
            for key in [key for key, (_, principal) in self._known.items() if principal.token == token]:
                del self._known[key]
