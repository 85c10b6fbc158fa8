"""The only polling loop of the harness."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    check: Callable[[], T | None],
    description: str,
    *,
    timeout_s: float = 120.0,
    poll_s: float = 0.02,
    details: Callable[[], str] = str,
) -> T:
    """Poll until `check` returns a true value.

    Args:
        check: Called repeatedly; an exception that it raises ends the wait.
        description: The expected state, for the error: ``"a standby is READY"``.
        timeout_s: Longest wait, in seconds.
        poll_s: Pause between two calls, in seconds.
        details: Called on a timeout; its text is added to the error.

    Returns:
        The value that `check` returned.

    Raises:
        TimeoutError: `check` returned no true value in time.

    Example::

        driver = eventually(job.driver, "a driver runs", timeout_s=60)
    """
    deadline = time.monotonic() + timeout_s
    while not (value := check()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{description}: not within {timeout_s:g} s\n{details()}".rstrip())
        time.sleep(poll_s)
    return value
