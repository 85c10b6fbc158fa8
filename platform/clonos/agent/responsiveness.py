"""Detects a driver that no longer responds although its process exists."""

from __future__ import annotations

import time
from typing import Final

# A longer pause between two checks counts as this: the agent or the whole host was suspended, not only the driver.
_LONGEST_CHECK_INTERVAL_S: Final = 3.0


class ResponsivenessTimer:
    """Measures how long a driver has been unresponsive, without the time in which the agent itself was suspended.

    Args:
        limit_s: The driver is unresponsive after this time without a heartbeat; 0: never.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._last_heartbeat: float | None = None
        self._checked_at = time.monotonic()
        self._unresponsive_s = 0.0

    @property
    def silent(self) -> bool:
        """Whether the driver has sent no heartbeat yet."""
        return self._last_heartbeat is None

    def expired(self, heartbeat: float | None) -> bool:
        """Update the timer, and return whether the driver has been unresponsive for longer than the limit.

        Args:
            heartbeat: A value that changes with each heartbeat; None before the first one.
        """
        now = time.monotonic()
        elapsed_s, self._checked_at = now - self._checked_at, now
        if heartbeat is None or heartbeat != self._last_heartbeat:
            self._last_heartbeat, self._unresponsive_s = heartbeat, 0.0
        else:
            self._unresponsive_s += min(elapsed_s, _LONGEST_CHECK_INTERVAL_S)
        return 0 < self._limit_s < self._unresponsive_s
