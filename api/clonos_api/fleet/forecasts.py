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
from clonos.resources.status import Basis
from clonos.standby.states import StandbyState
from clonos_api.fleet.facts import Facts, Waiting
from clonos_api.fleet.lines import Forecast
from clonos_api.store.tables import JobRow, RecoveryRow, RunRow, StandbyRow

# Causes of recoveries that are neither a takeover nor a cold restart after a failure.
_NEITHER: Final = (*PLANNED, "restart", "rollback", "shutdown")
_NEWEST: Final = 500  # recoveries that an estimate uses
# The phases of a takeover that a standby rehearses. In the others the failure is detected, the standby is chosen and
# promoted, and it claims the log.
_REHEARSED: Final = frozenset({"replay", "epoch", "ready", "others"})
# The others, in ms: medians of 30 takeovers in the part `standby` of bench/results/whole-2026-11-29.json. They are used
# until the platform has had a takeover.
BENCHMARK_MS: Final = {"detect": 40, "decide": 10, "wake": 31, "claim": 70, "restore": 24, "commit": 5}
_OF_JOB: Final = 5  # newest recoveries of a job that its own estimate uses


@dataclass(frozen=True)
class Estimates:
    """Medians of what happened before; None: it never happened."""

    # Job id → time without output until a standby had taken over, in seconds.
    warm_s: dict[str, float] = field(default_factory=dict)
    cold_s: dict[str, float] = field(default_factory=dict)  # the same until a new driver process had started
    any_warm_s: float | None = None  # as `warm_s`, over all jobs
    any_cold_s: float | None = None  # as `cold_s`, over all jobs
    # Time of the phases of a takeover after a crash that no standby rehearses, over all jobs, in seconds.
    steps_s: float | None = None
    ready_s: float | None = None  # time from the placement of a standby until it was READY, of those that are READY now


async def read_estimates(session: AsyncSession) -> Estimates:
    """Read the newest recoveries and standbys, and compute the medians."""
    rows = select(RecoveryRow.job, RecoveryRow.body).where(RecoveryRow.ended_at.is_not(None))
    warm: list[tuple[str, float]] = []
    cold: list[tuple[str, float]] = []
    steps: list[float] = []
    for job, body in await session.execute(rows.order_by(RecoveryRow.started_at.desc()).limit(_NEWEST)):
        # Without input: the time until it was ready to read.
        if body.outcome not in ("COMPLETED", "IDLE") or body.cause in _NEITHER:
            continue
        if body.downtime_ms is None:
            continue
        (warm if body.standby else cold).append((job, body.downtime_ms / 1000))
        if body.standby and body.cause == "crash" and body.phases:
            steps.append(sum(phase.duration_ms for phase in body.phases if phase.name not in _REHEARSED) / 1000)
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
        _median(steps),
        _median(took),
    )


def forecast_of(job: JobRow, facts: Facts, estimates: Estimates) -> Forecast | None:
    """Return what happens if the driver of `job` fails now; None if the job does not run."""
    if job.state != JobState.RUNNING:
        return None
    unreachable = facts.lost | facts.disconnected | facts.silent
    standbys = [standby for standby in facts.standbys.get(job.id, ()) if standby.host not in unreachable]
    ready = [standby for standby in standbys if standby.state == StandbyState.READY]
    if ready:
        estimate_s, basis = _warm_s(job, ready[0], estimates)
        return Forecast(True, ready[0].host, estimate_s, basis=basis)
    cold_s, basis = _known(estimates.cold_s.get(job.id), estimates.any_cold_s)
    if not standbys:
        return Forecast(False, estimate_s=cold_s, basis=basis)
    return Forecast(False, standbys[0].host, cold_s, _ready_in_s(standbys, estimates, facts.at), basis)


def _warm_s(job: JobRow, standby: Waiting, estimates: Estimates) -> tuple[float | None, Basis | None]:
    """From the job's own takeovers, else from the standby's rehearsals, else from takeovers of other jobs."""
    own_s = estimates.warm_s.get(job.id)
    if own_s is not None or standby.epoch_s is None:
        return _known(own_s, estimates.any_warm_s)
    if estimates.steps_s is not None:
        return estimates.steps_s + standby.epoch_s, "rehearsals"
    return sum(BENCHMARK_MS.values()) / 1000 + standby.epoch_s, "benchmark"


def _known(own_s: float | None, any_s: float | None) -> tuple[float | None, Basis | None]:
    if own_s is not None:
        return own_s, "job"
    return any_s, "platform" if any_s is not None else None


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
