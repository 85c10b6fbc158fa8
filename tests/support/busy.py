"""Time limits that hold on a busy machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

_PROBE_S = 0.2


def slowdown() -> float:
    """How many times longer CPU work takes now than on an idle machine: 1.0 or more.

    Wall time divided by CPU time of this thread, over 0.2 s of CPU time.
    """
    wall, cpu = time.monotonic(), time.thread_time()
    while time.thread_time() - cpu < _PROBE_S:
        pass
    return max(1.0, (time.monotonic() - wall) / (time.thread_time() - cpu))


@contextmanager
def within(limit_s: float) -> Iterator[None]:
    """Fail if the block takes longer than the limit, multiplied by the machine's slowdown.

    Args:
        limit_s: Seconds on an idle machine, several times what the block needs there.

    Example:
        with within(3.0):
            agent.stop()
    """
    begun = time.monotonic()
    yield
    took_s = time.monotonic() - begun
    if took_s > limit_s:
        factor = slowdown()
        assert took_s <= limit_s * factor, (
            f"took {took_s:.2f} s of {limit_s:g} s on a machine {factor:.1f} times slower"
        )
