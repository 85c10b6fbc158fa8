"""How often agents push what their drivers wrote: more seldom the more drivers this replica hears of.

What a push costs is nearly the same whether it tells of one epoch or of ten, so the time between two of them is what
bounds the work.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

_MS_A_RUN: Final = 5
_LEAST_MS: Final = 200
_MOST_MS: Final = 10_000


class Pace:
    """The drivers of all agents that were heard of within `silent_s`.

    Args:
        silent_s: An agent that was not heard of for so long does not count.
        clock: Seconds that only go up.
    """

    def __init__(self, silent_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._silent_s = silent_s
        self._clock = clock
        self._heard: OrderedDict[str, tuple[float, int]] = OrderedDict()  # longest ago first
        self._runs = 0

    def forward_ms(self, agent: str, runs: int) -> int:
        """How often an agent that has so many drivers is to push."""
        now = self._clock()
        _, before = self._heard.pop(agent, (now, 0))
        self._heard[agent] = now, runs
        self._runs += runs - before
        while (longest := next(iter(self._heard.values())))[0] < now - self._silent_s:
            self._heard.popitem(last=False)
            self._runs -= longest[1]
        return max(_LEAST_MS, min(_MOST_MS, self._runs * _MS_A_RUN))
