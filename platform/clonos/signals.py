"""Handlers for the signals that request a graceful stop."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType


def stop_on_signals(stop: Callable[[], None], *more: signal.Signals) -> None:
    """Call `stop` on SIGTERM, SIGINT and `more` signals.

    `stop` may interrupt code that holds a lock, so it must not wait for a lock.
    """

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop()

    for number in (signal.SIGTERM, signal.SIGINT, *more):
        signal.signal(number, handle)
