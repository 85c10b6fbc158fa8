"""The polling loop of the harness, and its deadlines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


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
        poll_s: Pause between two calls, in seconds.
        details: Called on a timeout; its text is added to the error.

    Returns:
        The value that `check` returned.

    Raises:
        TimeoutError: `check` returned no true value in time.

    Example::

        driver = eventually(job.driver, "a driver runs", timeout_s=60)
    """
    deadline = Deadline(timeout_s)
    while not (value := check()):
        if deadline.passed():
            raise TimeoutError(f"{description}: not within {deadline.waited_s:.0f} s\n{details()}".rstrip())
        time.sleep(poll_s)
    return value
