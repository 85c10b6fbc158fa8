"""How long an init of a transactional producer may take before another producer replaces it (a hedge).

A hedge helps against a timer of librdkafka. Against a slow coordinator it does not: the first init may still be queued,
and each hedge adds load. So the patience follows the measured durations, and hedges are few in a minute.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

_TIMEOUTS_S: Final = (0.4, 1.0, 3.0, 10.0, 20.0)
_PATIENT_S: Final = 10.0
_OF_SLOWEST: Final = 4.0  # longer than this multiple of the slowest recent init is unusual
_RECENT: Final = 8
_HEDGES_PER_MINUTE: Final = 3
_MINUTE_S: Final = 60.0


class InitPatience:
    """The patience of this process, for all of its producers.

    Args:
        clock: Returns seconds.

    Example:
        >>> patience = InitPatience()
        >>> patience.answered(0.5)
        >>> patience.timeouts_s()
        (3.0, 10.0, 20.0)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._durations: deque[float] = deque(maxlen=_RECENT)
        self._hedges: deque[float] = deque(maxlen=_HEDGES_PER_MINUTE)

    def timeouts_s(self) -> tuple[float, ...]:
        """Return the timeouts of the attempts at one init, in seconds; a hedge follows each but the last."""
        with self._lock:
            usual_s = _OF_SLOWEST * max(self._durations, default=0.0)
            many = len(self._hedges) == _HEDGES_PER_MINUTE and self._clock() - self._hedges[0] < _MINUTE_S
        shortest_s = _PATIENT_S if many else min(usual_s, _PATIENT_S)
        return tuple(timeout_s for timeout_s in _TIMEOUTS_S if timeout_s >= shortest_s)

    def answered(self, seconds: float) -> None:
        """Note the duration of an init that succeeded."""
        with self._lock:
            self._durations.append(seconds)

    def timed_out(self) -> None:
        """Note an init that timed out, so that a hedge follows."""
        with self._lock:
            self._hedges.append(self._clock())
