"""Who holds a request open under which token: a stream or a long-poll ends with the token that it was asked with.

That a token is revoked is heard from the events, so also if it was another replica that revoked it.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from clonos.resources.service import Event
from clonos_api.auth.principal import Principal

_REMEMBERED: Final = 1_000


class Held:
    """One open request.

    Args:
        seconds: For so long at the most.
        wake: Has whoever waits look at `over`.
    """

    def __init__(self, seconds: float, wake: Callable[[], object]) -> None:
        self._until = time.monotonic() + seconds
        self.wake = wake
        self.revoked = False

    @property
    def left_s(self) -> float:
        """How long it may go on."""
        return 0.0 if self.revoked else max(0.0, self._until - time.monotonic())

    def over(self) -> bool:
        """Whether it is to end."""
        return self.left_s <= 0.0


class Holders:
    """All open requests, by token."""

    def __init__(self) -> None:
        self._held: defaultdict[str, list[Held]] = defaultdict(list)
        # For a request that was let in just before.
        self._revoked: deque[str] = deque(maxlen=_REMEMBERED)

    @contextmanager
    def holding(self, caller: Principal, seconds: float, wake: Callable[[], object]) -> Iterator[Held]:
        """A request that is open for so long at the most, and no longer than the caller's token is valid."""
        if caller.expires_at is not None:
            seconds = min(seconds, (caller.expires_at - datetime.now(UTC)).total_seconds())
        held = Held(seconds, wake)
        held.revoked = caller.token in self._revoked
        self._held[caller.token].append(held)
        try:
            yield held
        finally:
            self._held[caller.token].remove(held)
            if not self._held[caller.token]:
                del self._held[caller.token]

    def hear(self, event: Event) -> None:
        """End what was asked with a token that is revoked."""
        if event.type == "token.revoked":
            token = str(event.data.get("token"))
            self._revoked.append(token)
            for held in self._held.get(token, ()):
                held.revoked = True
                held.wake()
