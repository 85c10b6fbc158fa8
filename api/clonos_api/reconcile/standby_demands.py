"""Loads the facts that decide the standbys of jobs (`clonos_api.reconcile.standbys`)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from sqlalchemy import bindparam, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from clonos.resources.jobs import DesiredState, JobState
from clonos.standby.states import StandbyState
from clonos_api.reconcile.checkpoints import CheckpointLocations
from clonos_api.reconcile.facts import StandbyDemand
from clonos_api.reconcile.isolated import Isolated
from clonos_api.reconcile.load import JobCase, Snapshot
from clonos_api.store import recoveries
from clonos_api.store.tables import JobRow, RunRow, StandbyRow

# A standby that failed by itself is not replaced before this; twice as late after each further one that never followed
# the log, so that a standby which cannot warm up does not take the CPU time of the jobs for ever.
_REPLACE_AFTER: Final = timedelta(seconds=15)
_REPLACE_AFTER_AT_MOST: Final = timedelta(minutes=5)
# Failures before this do not count.
_FAILURES_WITHIN: Final = timedelta(minutes=30)
# After a failure a standby is not added before the recovery has ended, or this has passed since its start.
_FIRST_EPOCHS: Final = timedelta(seconds=20)
_DRIVER: Final = aliased(RunRow)
_FAILED: Final = (
    select(StandbyRow.job, StandbyRow.since, StandbyRow.body)
    .join(RunRow, RunRow.id == StandbyRow.id)
    .join(JobRow, JobRow.id == StandbyRow.job)
    .outerjoin(_DRIVER, _DRIVER.id == JobRow.run)
    .where(
        RunRow.spec["version"].as_integer() == func.coalesce(_DRIVER.spec["version"].as_integer(), JobRow.version),
        StandbyRow.state == StandbyState.FAILED,
        StandbyRow.since > bindparam("since"),
        RunRow.spec["desired"].as_string() != "ABSENT",
        RunRow.spec["standby"].as_boolean(),
    )
)


async def load_standby_demands(
    session: AsyncSession, snapshot: Snapshot, locations: CheckpointLocations
) -> list[tuple[StandbyDemand, JobCase]]:
    """Load the jobs that need standbys or have some, each with its `StandbyDemand`."""
    requested = JobRow.spec["spec"]["standby"]["replicas"].as_integer() > 0
    query = (
        select(JobRow, RunRow)
        .outerjoin(RunRow, RunRow.id == JobRow.run)
        .where(JobRow.deleted_at.is_(None), or_(requested, JobRow.id.in_(snapshot.standbys)))
        .order_by(JobRow.id)
    )
    rows = (await session.execute(query)).all()
    failures = await _failures(session, snapshot.now) if rows else {}
    recoveries_open = await recoveries.open_since(session, snapshot.now - _FIRST_EPOCHS) if rows else set[str]()
    cases = [
        JobCase(job, run, standbys=snapshot.standbys.get(job.id, []), clusters=snapshot.clusters) for job, run in rows
    ]
    demands: list[tuple[StandbyDemand, JobCase]] = []
    for case in cases:
        with Isolated("job", case.job.id):
            failed = not_replaced_yet(failures.get(case.job.id, []), snapshot.now)
            recovers = case.job.id in recoveries_open
            demand = standby_demand(case, locations, failed_recently=failed, recovery_open=recovers)
            demands.append((demand, case))
    return demands


class StandbyFailure(NamedTuple):
    """A standby that failed by itself: when, and whether it had followed the log, so that it was READY."""

    at: datetime
    followed: bool


async def _failures(session: AsyncSession, now: datetime) -> dict[str, list[StandbyFailure]]:
    """Standbys of the driver's version that failed by themselves, by job; a dropped standby is replaced immediately."""
    failures: dict[str, list[StandbyFailure]] = {}
    for job, since, body in await session.execute(_FAILED, {"since": now - _FAILURES_WITHIN}):
        failures.setdefault(job or "", []).append(StandbyFailure(since, body.epochs is not None))
    return failures


def not_replaced_yet(failures: Sequence[StandbyFailure], now: datetime) -> int:
    """Return the number of failed standbys of a job that are not replaced yet.

    Args:
        failures: Its newest failures.
        now: The current time.

    Example:
        >>> not_replaced_yet([StandbyFailure(now - timedelta(seconds=20), followed=True)], now)
        0
    """
    count, cold = 0, 0
    for failure in sorted(failures):
        pause = _REPLACE_AFTER if failure.followed else min(_REPLACE_AFTER * 2**cold, _REPLACE_AFTER_AT_MOST)
        cold += not failure.followed
        count += failure.at > now - pause
    return count


def standby_demand(
    case: JobCase, locations: CheckpointLocations, *, failed_recently: int = 0, recovery_open: bool = False
) -> StandbyDemand:
    """Compute the facts that decide a job's standbys.

    Args:
        case: The job, and the run of its driver.
        locations: Locations of checkpoints.
        failed_recently: As in `StandbyDemand`.
        recovery_open: As in `StandbyDemand`.
    """
    job, run = case.job, case.run
    move = job.moving
    continues = run is not None and run.spec.desired == "RUNNING"
    finishes = run is not None and bool(run.spec.finish_for or run.spec.next)
    replicas = job.spec.spec.standby.dedicated_replicas
    return StandbyDemand(
        id=job.id,
        state=JobState(job.state),
        desired=DesiredState(job.desired_state),
        # A run that only finishes epochs in doubt needs no standby: the next run is of another version.
        replicas=0 if finishes else max(replicas, move.kept if move is not None else 0),
        version=run.spec.version if run is not None else job.version,
        previous_version=move.previous if move is not None else None,
        successor=move.standby if move is not None else None,
        host=run.host if run is not None else None,
        run=run.id if run is not None and continues else None,
        takeover_wait_s=run.spec.restart.takeover_wait_s if run is not None and continues else 0.0,
        bound=job.home if case.is_local(locations) else None,
        named_host=case.named_host(),
        failed_recently=failed_recently,
        cluster=case.cluster(),
        recovery_open=recovery_open,
    )
