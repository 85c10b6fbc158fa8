"""The recoveries of the last 24 hours, as a strip of bars with one lane per job.

Bars stand for half hours, so that the strip changes only with a recovery and once in half an hour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.figures import duration
from clonos.resources.incidents import kind_of, sentence
from clonos.resources.jobs import Recovery
from clonos.resources.recovery_descriptions import PLANNED
from clonos_api.fleet.facts import Facts
from clonos_api.fleet.lines import Bar, Health, Lane, Strip
from clonos_api.store import views
from clonos_api.store.tables import RecoveryRow

SLOTS: Final = 48
_SLOT: Final = timedelta(minutes=30)
_DAY: Final = SLOTS * _SLOT
_NEWEST: Final = 1000  # recoveries that are read
_LANES: Final = 6
_BARS: Final = 96  # in all lanes, so that the overview stays small
_WORST: Final[dict[Health, int]] = {"bad": 0, "weak": 1, "busy": 2, "good": 3, "idle": 4}
# Bars grow with the logarithm of the time without output, from the first to the second of these, in seconds.
_SHORTEST_S: Final = 0.1
_LONGEST_S: Final = 600.0
_HEIGHT: Final = 10


@dataclass
class RecentRecoveries:
    """The recoveries of the last 24 hours. They are read again only if a job has a new one: older ones never change."""

    _known: dict[str, Recovery] = field(default_factory=dict)

    async def read(self, session: AsyncSession, facts: Facts) -> list[Recovery]:
        """Return the recoveries of all jobs that began since the start of the strip, or are in progress."""
        begin = until(facts.at) - _DAY
        newest = [row for row in facts.recoveries.values() if row.started_at >= begin or row.ended_at is None]
        if any(row.id not in self._known for row in newest):
            rows = select(RecoveryRow).where(RecoveryRow.started_at >= begin)
            read = await session.scalars(rows.order_by(RecoveryRow.started_at.desc()).limit(_NEWEST))
            self._known = {row.id: views.recovery(row) for row in read}
        changed = (row for row in newest if row.id not in self._known or self._known[row.id].ended_at is None)
        self._known |= {row.id: views.recovery(row) for row in changed}
        self._known = {
            id: known for id, known in self._known.items() if known.started_at >= begin or known.ended_at is None
        }
        return list(self._known.values())


def until(at: datetime) -> datetime:
    """Return the end of the half hour of a moment."""
    midnight = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + _SLOT * (1 + (at - midnight) // _SLOT)


def strip_of(recoveries: Iterable[Recovery], names: Mapping[str, str], at: datetime) -> Strip:
    """Return the strip of these recoveries at a moment; only of the jobs in `names`, which has their names by id."""
    end = until(at)
    of_job: dict[str, list[Recovery]] = {}
    for recovery in recoveries:
        if recovery.job in names:
            of_job.setdefault(recovery.job, []).append(recovery)
    lanes = sorted((_lane(job, names[job], listed, end) for job, listed in of_job.items()), key=_order)
    shown: list[Lane] = []
    for lane in lanes[:_LANES]:
        if shown and sum(len(other.bars) for other in (*shown, lane)) > _BARS:
            break
        shown.append(lane)
    listed = [recovery for recoveries_of_job in of_job.values() for recovery in recoveries_of_job]
    return Strip(end, _summary(listed, len(of_job)), tuple(shown), len(lanes) - len(shown))


def _order(lane: Lane) -> tuple[int, int, str]:
    return min(_WORST[bar.health] for bar in lane.bars), -max(bar.height for bar in lane.bars), lane.name


def _lane(job: str, name: str, recoveries: Iterable[Recovery], end: datetime) -> Lane:
    slots: dict[int, list[Recovery]] = {}
    for recovery in sorted(recoveries, key=lambda recovery: (recovery.started_at, recovery.id)):
        slot = SLOTS - 1 - (end - recovery.started_at - timedelta(microseconds=1)) // _SLOT
        slots.setdefault(min(max(slot, 0), SLOTS - 1), []).append(recovery)
    return Lane(job, name, tuple(_bar(slot, name, slots[slot]) for slot in sorted(slots)))


def _bar(slot: int, name: str, recoveries: list[Recovery]) -> Bar:
    worst = min(recoveries, key=lambda recovery: (_WORST[health_of(recovery)], -_height(recovery)))
    text = f"{worst.started_at.astimezone(UTC):%H:%M} UTC, {sentence(worst, name)}"
    if len(recoveries) > 1:
        text = f"{len(recoveries)} recoveries, the worst at {text}"
    return Bar(slot, health_of(worst), max(map(_height, recoveries)), worst.id, text)


def health_of(recovery: Recovery) -> Health:
    """How bad a recovery is, as in `Bar`."""
    if recovery.outcome == "OVERTAKEN" or (recovery.outcome == "IDLE" and recovery.downtime_ms is None):
        return "idle"
    if recovery.outcome in ("SUPERSEDED", "ABANDONED"):
        return "bad"
    if recovery.cause in PLANNED:
        return "busy"
    if recovery.outcome is None:
        return "bad"
    kind = kind_of(recovery)
    cold = kind in ("cold restart", "rollback") or (kind == "stopped agent" and recovery.standby is None)
    return "weak" if cold else "good"


def _height(recovery: Recovery) -> int:
    if recovery.downtime_ms is None:
        return _HEIGHT if health_of(recovery) == "bad" else 1
    seconds = min(max(recovery.downtime_ms / 1000, _SHORTEST_S), _LONGEST_S)
    return 1 + round((_HEIGHT - 1) * math.log(seconds / _SHORTEST_S) / math.log(_LONGEST_S / _SHORTEST_S))


def _summary(recoveries: list[Recovery], jobs: int) -> str:
    if not recoveries:
        return "No recovery in the last 24 hours."
    count, planned = len(recoveries), sum(recovery.cause in PLANNED for recovery in recoveries)
    parts = [f"{count} {'recovery' if count == 1 else 'recoveries'} of {jobs} job{'' if jobs == 1 else 's'}"]
    parts[0] += f" in the last 24 hours{f', {planned} of them planned' if planned else ''}"
    gaps = [recovery.downtime_ms for recovery in recoveries if recovery.downtime_ms is not None]
    if gaps:
        parts.append(f"the longest time without output was {duration(max(gaps))}")
    in_progress = sum(recovery.ended_at is None for recovery in recoveries)
    if in_progress:
        parts.append(f"{in_progress} {'is' if in_progress == 1 else 'are'} in progress")
    return f"{'; '.join(parts)}."
