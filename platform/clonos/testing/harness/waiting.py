"""The polling loop of the harness, and its deadlines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
# A check of 20 ms of CPU time that was called every 20 ms took half a core from the processes that it waited for.
_PAUSE_PER_WORK = 9
_LONGEST_PAUSE_S = 1.0


class Deadline:
    """A deadline that a busy machine reaches later: with N runnable processes for each core, N times as late.

    Args:
        timeout_s: Time until the deadline on a machine with a core for each runnable process, in seconds.

    Attributes:
        waited_s: Seconds of real time until the newest call of `passed`.
    """

    def __init__(self, timeout_s: float) -> None:
        self.waited_s = 0.0
        self._started = time.monotonic()
        self._left_s = timeout_s

    def passed(self) -> bool:
        """Whether the deadline has passed. Call it at least every few seconds: it reads the load each time."""
        now = time.monotonic() - self._started
        processes_per_core = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        self._left_s -= (now - self.waited_s) / processes_per_core
        self.waited_s = now
        return self._left_s < 0


def eventually(
    check: Callable[[], T | None],
    description: str,
    *,
    timeout_s: float = 120.0,
    poll_s: float = 0.02,
    details: Callable[[], str] = str,
) -> T:
    """Poll until `check` returns a true value.

    A busy machine gets more time: with N runnable processes for each core, the wait is up to N times as long.

    Args:
        check: Called repeatedly; an exception that it raises ends the wait.
        description: The expected state, for the error: ``"a standby is READY"``.
        timeout_s: Longest wait on a machine with a core for each runnable process, in seconds.
        poll_s: Pause between two calls, in seconds. It is longer after a call that took CPU time, up to a second, so
            that the calls take at most a tenth of a core; 0: no pause.
        details: Called on a timeout; its text is added to the error.

    Returns:
        The value that `check` returned.

    Raises:
        TimeoutError: `check` returned no true value in time.

    Example::

        driver = eventually(job.driver, "a driver runs", timeout_s=60)
    """
    deadline = Deadline(timeout_s)
    while True:
        work_s = -time.process_time()
        if value := check():
            return value
        if deadline.passed():
            raise TimeoutError(f"{description}: not within {deadline.waited_s:.0f} s\n{details()}".rstrip())
        work_s += time.process_time()
        time.sleep(max(poll_s, min(_PAUSE_PER_WORK * work_s, _LONGEST_PAUSE_S)) if poll_s else 0.0)
