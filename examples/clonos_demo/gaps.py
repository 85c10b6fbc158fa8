"""The time that readers waited after each kill, with cold restarts and takeovers by a standby side by side."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Target = Literal["driver", "executor"]
RecoveryKind = Literal["cold", "standby", "executor"]
RECOVERY_KINDS: dict[RecoveryKind, str] = {
    "cold": "cold restart",
    "standby": "standby takeover",
    "executor": "executor replaced",
}


@dataclass(frozen=True, slots=True)
class Kill:
    """A planned kill of a job's driver, or of one of its executors on a Spark cluster."""

    delay_s: float  # seconds between the arrival of new output and the kill
    standby: bool = False  # True: wait until a standby is READY and had time to rehearse; False: wait until none exists
    target: Target = "driver"
    in_doubt: bool = False  # after the delay, wait until an epoch is in doubt with a published lane


@dataclass(frozen=True, slots=True)
class Gap:
    """Time from a kill until a read_committed reader received the first record of the next claim."""

    kind: RecoveryKind  # kind of recovery: restarted driver, standby that took over, driver with another executor
    seconds: float


def median_s(gaps: Sequence[Gap], kind: RecoveryKind) -> float | None:
    """Return the median of the gaps of one kind of recovery, in seconds; None without such gaps."""
    seconds = [gap.seconds for gap in gaps if gap.kind == kind]
    return statistics.median(seconds) if seconds else None


def times_shorter(gaps: Sequence[Gap]) -> float | None:
    """Return the median gap of cold restarts, divided by the takeovers'; None unless there are gaps of both kinds."""
    cold, standby = median_s(gaps, "cold"), median_s(gaps, "standby")
    return cold / standby if cold and standby else None


def side_by_side(gaps: Sequence[Gap]) -> dict[str, Any]:
    """Statistics of the gaps of cold restarts and takeovers as a JSON object, in seconds.

    A gap begins with a kill and ends with the next driver's first record at the reader. For each kind the object has
    the median, the number and the list of the gaps; and `times_shorter`.
    """
    sides: dict[str, Any] = {}
    for kind in RECOVERY_KINDS:
        raw = [round(gap.seconds, 3) for gap in gaps if gap.kind == kind]
        sides[kind] = {"p50_s": round(statistics.median(raw), 3), "n": len(raw), "raw_s": raw} if raw else None
    shorter = times_shorter(gaps)
    return {**sides, "times_shorter": round(shorter, 1) if shorter is not None else None}
