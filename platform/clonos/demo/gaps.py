"""How long readers waited after each kill: cold restarts beside takeovers by a standby."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Way = Literal["cold", "standby"]
WAYS: dict[Way, str] = {"cold": "cold restart", "standby": "standby takeover"}


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill to come.

    Attributes:
        delay_s: How long after new output.
        standby: Only once a standby is READY.
    """

    delay_s: float
    standby: bool = False


@dataclass(frozen=True, slots=True)
class Gap:
    """From a kill to the first record of the next driver that a read_committed reader got.

    Attributes:
        way: How the job went on: its driver was started again, or a standby took over.
    """

    way: Way
    seconds: float


def median_s(gaps: Sequence[Gap], way: Way) -> float | None:
    """The median of one kind; None if there was none."""
    seconds = [gap.seconds for gap in gaps if gap.way == way]
    return statistics.median(seconds) if seconds else None


def times_shorter(gaps: Sequence[Gap]) -> float | None:
    """How many times shorter a takeover was than a cold restart; None if there were not both."""
    cold, standby = median_s(gaps, "cold"), median_s(gaps, "standby")
    return cold / standby if cold and standby else None


def side_by_side(gaps: Sequence[Gap]) -> dict[str, Any]:
    """Both kinds beside each other, in seconds."""
    found: dict[str, Any] = {}
    for way in WAYS:
        raw = [round(gap.seconds, 3) for gap in gaps if gap.way == way]
        found[way] = {"p50_s": round(statistics.median(raw), 3), "n": len(raw), "raw_s": raw} if raw else None
    shorter = times_shorter(gaps)
    return {**found, "times_shorter": round(shorter, 1) if shorter is not None else None}
