"""Ends a stream or a long poll when the token of its caller expires or is revoked.

Revocations arrive as events, also those by other replicas.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from clonos.resources.service import Event

_MAX_REVOKED: Final = 1_000


class OpenRequest:
    """A stream or long poll of at most `seconds`. `wake` is called to wake it, so that it checks `over`."""

    def __init__(self, seconds: float, wake: Callable[[], object]) -> None:
        self._until = time.monotonic() + seconds
        self.wake = wake
        self.revoked = False

    @property
    def left_s(self) -> float:
        """Remaining time of the request, in seconds."""
        return 0.0 if self.revoked else max(0.0, self._until - time.monotonic())

    def over(self) -> bool:
        """Whether the request must end: its time is over, or its token was revoked."""
        return self.left_s <= 0.0


class OpenRequests:
    """All streams and long polls in progress, by the id of their token, so that a revocation can end them."""

    def __init__(self) -> None:
        self._open: defaultdict[str, list[OpenRequest]] = defaultdict(list)
        # For requests that were authenticated just before the revocation.
        self._revoked: deque[str] = deque(maxlen=_MAX_REVOKED)

    @contextmanager
    def opened(
        self, token: str, expires_at: datetime | None, seconds: float, wake: Callable[[], object]
    ) -> Iterator[OpenRequest]:
        """Keep a request registered for the duration of the context.

        Args:
            token: Id of the caller's token. Its revocation calls `wake`.
            expires_at: Time when the token expires, at which the request is over; None if it does not expire.
            seconds: Maximum duration of the request.
            wake: Wakes the request, so that it checks `OpenRequest.over`.
        """
        if expires_at is not None:
            seconds = min(seconds, (expires_at - datetime.now(UTC)).total_seconds())
        request = OpenRequest(seconds, wake)
        request.revoked = token in self._revoked
        self._open[token].append(request)
        try:
            yield request
        finally:
            self._open[token].remove(request)
            if not self._open[token]:
                del self._open[token]

    def on_event(self, event: Event) -> None:
        """End the requests of a token when `event` is its revocation."""
        if event.type == "token.revoked":
            token = str(event.data.get("token"))
            self._revoked.append(token)
            for request in self._open.get(token, ()):
                request.revoked = True
                request.wake()
