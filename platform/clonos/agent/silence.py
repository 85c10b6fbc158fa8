"""Whether a driver is frozen: it has shown signs of life, and shows none any more."""

from __future__ import annotations

import time
from typing import Final

# Looks that come later than this do not count: then it was the agent, or the whole host, that was away.
_LATE_S: Final = 3.0


class Silence:
    """Adds up for how long a driver was silent while somebody was there to hear it.

    Args:
        limit_s: When it is frozen; 0: never.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._sign: float | None = None
        self._looked = time.monotonic()
        self._silent_s = 0.0

    def over(self, sign: float | None) -> bool:
        """Whether it was silent for too long.

        Args:
            sign: Something that is another one with each sign of life; None: it has given none yet.
        """
        now = time.monotonic()
        passed, self._looked = now - self._looked, now
        if sign is None or sign != self._sign:
            self._sign, self._silent_s = sign, 0.0
        else:
            self._silent_s += min(passed, _LATE_S)
        return 0 < self._limit_s < self._silent_s
