"""What happens if the driver of a job fails now, estimated from earlier recoveries and standbys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.jobs import JobState
from clonos.resources.recovery_descriptions import PLANNED
from clonos.standby.states import StandbyState
from clonos_api.fleet.facts import Facts, Waiting
from clonos_api.fleet.lines import Forecast
from clonos_api.store.tables import JobRow, RecoveryRow, RunRow, StandbyRow

# Causes of recoveries that are neither a takeover nor a cold restart after a failure.
_NEITHER: Final = (*PLANNED, "restart", "rollback", "shutdown")
_NEWEST: Final = 500  # recoveries that an estimate uses
# What a takeover does besides the epoch that a standby has rehearsed: the failure is detected, the standby is promoted
# and claims the log (bench/README.md).
_PROMOTION_S: Final = 0.15
_OF_JOB: Final = 5  # newest recoveries of a job that its own estimate uses


@dataclass(frozen=True)
class Estimates:
    """Medians of what happened before; None: it never happened.

    Attributes:
        warm_s: Job id → time without output until a standby had taken over, in seconds.
        cold_s: The same until a new driver process had started.
        any_warm_s: As `warm_s`, over all jobs; `any_cold_s` likewise.
        ready_s: Time from the placement of a standby until it was READY, of those that are READY now.
    """

    warm_s: dict[str, float] = field(default_factory=dict)
    cold_s: dict[str, float] = field(default_factory=dict)
    any_warm_s: float | None = None
    any_cold_s: float | None = None
    ready_s: float | None = None


async def read_estimates(session: AsyncSession) -> Estimates:
    """Read the newest recoveries and standbys, and compute the medians."""
    rows = select(RecoveryRow.job, RecoveryRow.body).where(RecoveryRow.ended_at.is_not(None))
    warm: list[tuple[str, float]] = []
    cold: list[tuple[str, float]] = []
    for job, body in await session.execute(rows.order_by(RecoveryRow.started_at.desc()).limit(_NEWEST)):
        # Without input: the time until it was ready to read.
        if body.get("outcome") not in ("COMPLETED", "IDLE") or body["cause"] in _NEITHER:
            continue
        if body.get("downtime_ms") is None:
            continue
        (warm if body.get("standby") else cold).append((job, float(body["downtime_ms"]) / 1000))
    ready = (
        select(StandbyRow.since, RunRow.created_at)
        .join(RunRow, RunRow.id == StandbyRow.id)
        .where(StandbyRow.state == StandbyState.READY)
    )
    took = [(since - created).total_seconds() for since, created in await session.execute(ready)]
    return Estimates(
        _by_job(warm),
        _by_job(cold),
        _median([seconds for _, seconds in warm]),
        _median([seconds for _, seconds in cold]),
        _median(took),
    )


def forecast_of(job: JobRow, facts: Facts, estimates: Estimates) -> Forecast | None:
    """What happens if the driver of `job` fails now; None if the job does not run."""
    if job.state != JobState.RUNNING:
        return None
    unreachable = facts.lost | facts.disconnected | facts.silent
    standbys = [standby for standby in facts.standbys.get(job.id, ()) if standby.host not in unreachable]
    ready = [standby for standby in standbys if standby.state == StandbyState.READY]
    if ready:
        return Forecast(True, ready[0].host, _warm_s(job, ready[0], estimates))
    cold_s = estimates.cold_s.get(job.id, estimates.any_cold_s)
    if not standbys:
        return Forecast(False, estimate_s=cold_s)
    return Forecast(False, standbys[0].host, cold_s, _ready_in_s(standbys, estimates, facts.at))


def _warm_s(job: JobRow, standby: Waiting, estimates: Estimates) -> float | None:
    """From the job's own takeovers, else from the standby's rehearsals, else from takeovers of other jobs."""
    if job.id in estimates.warm_s:
        return estimates.warm_s[job.id]
    return _PROMOTION_S + standby.epoch_s if standby.epoch_s is not None else estimates.any_warm_s


def _ready_in_s(standbys: Sequence[Waiting], estimates: Estimates, at: datetime) -> float | None:
    if estimates.ready_s is None:
        return None
    left = max(estimates.ready_s - (at - standby.created_at).total_seconds() for standby in standbys[:1])
    return left if left > 0 else None  # it takes longer than usual


def _by_job(samples: Iterable[tuple[str, float]]) -> dict[str, float]:
    of_job: dict[str, list[float]] = {}
    for job, seconds in samples:
        of_job.setdefault(job, []).append(seconds)
    return {job: median(seconds[:_OF_JOB]) for job, seconds in of_job.items()}


def _median(seconds: Sequence[float]) -> float | None:
    return median(seconds) if seconds else None
