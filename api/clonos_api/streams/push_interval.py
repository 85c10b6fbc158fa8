"""Computes the interval of the agents' pushes; it grows with the number of drivers that report to this replica.

A push costs nearly the same for one epoch as for ten, so the interval limits the load.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

_MS_PER_RUN: Final = 5
_MIN_MS: Final = 200
_MAX_MS: Final = 10_000


class PushInterval:
    """Counts the drivers of all agents that reported within `timeout_s` seconds, and computes the interval of
    their pushes: 5 ms per driver, from 200 ms to 10 s.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._reports: OrderedDict[str, tuple[float, int]] = OrderedDict()  # oldest report first
        self._runs = 0

    def push_interval_ms(self, host: str, runs: int) -> int:
        """Record that the agent of `host` has `runs` drivers, and return its push interval in milliseconds."""
        now = self._clock()
        _, before = self._reports.pop(host, (now, 0))
        self._reports[host] = now, runs
        self._runs += runs - before
        while (oldest := next(iter(self._reports.values())))[0] < now - self._timeout_s:
            self._reports.popitem(last=False)
            self._runs -= oldest[1]
        return max(_MIN_MS, min(_MAX_MS, self._runs * _MS_PER_RUN))
