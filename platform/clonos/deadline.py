"""A moment until which something waits."""

from __future__ import annotations

import asyncio
import time


class Deadline:
    """A moment by the monotonic clock, which no change of the system's time moves.

    Args:
        seconds: Time until the deadline.
        since: When that time begins, as `time.monotonic` gives it. Default: now.

    Example:
        >>> Deadline(0.0).passed(), Deadline(60.0).passed()
        (True, False)
    """

    def __init__(self, seconds: float, *, since: float | None = None) -> None:
        self._at = (time.monotonic() if since is None else since) + seconds

    def passed(self) -> bool:
        """Whether the moment has been reached."""
        return time.monotonic() >= self._at

    def left_s(self) -> float:
        """Seconds until the moment; 0 once it has passed."""
        return max(0.0, self._at - time.monotonic())


async def is_set_within(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Whether `event` is set within `timeout_s` seconds; None waits without a timeout.

    For use instead of `asyncio.wait_for`, which in Python 3.11 loses a cancellation that arrives with the event.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await event.wait()
    except TimeoutError:
        return False
