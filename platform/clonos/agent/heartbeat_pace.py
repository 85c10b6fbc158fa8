"""When a host sends its heartbeats: the interval that it announces to the control plane, and its retries.

On a busy machine heartbeats are late. The host announces a longer interval then, so that a late heartbeat starts no
takeover: the control plane waits for four announced intervals. The idea of a failure detector that follows the delays
of its network is from Chen, Toueg and Aguilera, "On the Quality of Service of Failure Detectors" (2002).
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from typing import Final

_WINDOW_S: Final = 60.0
_LONGEST_S: Final = 3.0
# A longer pause is a machine that was suspended, which is a failure, not a delay.
_FROZEN_S: Final = 10.0


class HeartbeatPace:
    """Measures how late the responses to a host's heartbeats are.

    Example:
        >>> pace = HeartbeatPace()
        >>> pace.announced_s(0.25)
        0.25
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_s: float | None = None  # when the next response is due
        self._delays: deque[tuple[float, float]] = deque()  # time and delay in seconds; the delays decrease

    def answered(self, interval_s: float) -> None:
        """Record the response to a heartbeat; the next one is planned in `interval_s` seconds."""
        now = self._clock()
        delay_s = now - self._next_s if self._next_s is not None else 0.0
        self._next_s = now + interval_s
        if delay_s > _FROZEN_S:
            return
        while self._delays and self._delays[-1][1] <= delay_s:
            self._delays.pop()
        self._delays.append((now, delay_s))

    def unanswered(self) -> None:
        """Record a heartbeat without a response: the control plane may be unavailable, so no delay is measured."""
        self._next_s = None

    def announced_s(self, interval_s: float) -> float:
        """Return the interval to announce if the next heartbeat is planned in `interval_s`; at most 3 s, unless that is
        longer.

        Four announced intervals are at least twice the longest pause of the last minute.
        """
        while self._delays and self._delays[0][0] < self._clock() - _WINDOW_S:
            self._delays.popleft()
        longest_s = interval_s + (self._delays[0][1] if self._delays else 0.0)
        return max(interval_s, min(longest_s / 2, _LONGEST_S))


def retry_pause_s(interval_s: float, waited_s: float) -> float:
    """Return the pause after a heartbeat without a response, which took `waited_s`: four missing ones start a takeover.

    The time of the failed request is part of the pause. Jitter spreads the retries after refused requests.
    """
    return max(0.0, random.uniform(0.5, 1.0) * interval_s - waited_s)
