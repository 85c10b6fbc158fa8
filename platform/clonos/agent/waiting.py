"""Waiting for something, but not for ever."""

from __future__ import annotations

import asyncio


async def happens(event: asyncio.Event, seconds: float | None) -> bool:
    """Whether `event` is set within so many seconds.

    Not `asyncio.wait_for`, which in Python 3.11 forgets that it was cancelled if that comes in the same moment.
    """
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
