"""A clock that a test sets."""

from __future__ import annotations


class Clock:
    """Stands in for a clock function, and for the module `time`.

    Example:
        >>> clock = Clock()
        >>> clock.now += 2.5
        >>> clock(), clock.monotonic()
        (102.5, 102.5)
    """

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now
