"""Waiting for an event with a timeout."""

from __future__ import annotations

import asyncio


async def is_set_within(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Whether `event` is set within `timeout_s` seconds; None waits without a timeout.

    For use instead of `asyncio.wait_for`, which in Python 3.11 loses a cancellation that arrives with the event.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await event.wait()
    except TimeoutError:
        return False
