"""Writes the decisions about standbys and planned moves: new, ended and promoted standbys, and the state of the
move.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import ConcurrentUpdate
from clonos.resources.hosts import HostState, RunSpec
from clonos.standby.states import StandbyState
from clonos_api.reconcile import decisions as d
from clonos_api.reconcile.checkpoints import CheckpointLocations
from clonos_api.reconcile.load import JobCase
from clonos_api.reconcile.run_specs import standby_spec
from clonos_api.store import events, planned_moves, recoveries, runs, standbys
from clonos_api.store.columns import Moving
from clonos_api.store.tables import HostRow, JobRow, RunRow, StandbyRow


@dataclass
class MoveUpdate:
    """The changes that a list of decisions makes to a job's planned move."""

    before: Moving | None
    after: Moving | None
    spec: RunSpec | None = None  # specification of the standby that is added for the move
    successor: RunRow | None = None  # the run that takes over

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of the job's row to change, with their new values."""
        return {} if self.after == self.before else {"moving": self.after}


def update_move(
    case: JobCase, made: d.Decided, locations: CheckpointLocations, moment: datetime, platform: str
) -> MoveUpdate:
    """Compute the changes that the decisions make to the job's planned move; write nothing."""
    move = case.job.moving
    update = MoveUpdate(move, move, successor=case.successor)
    if made.get(d.EndMove) is not None:
        update.after = None
        return update
    if (begun := made.get(d.BeginMove)) is not None and case.run is not None:
        version, until = case.run.spec.version, moment + timedelta(seconds=begun.within_s)
        update.after = Moving(cause="drain", leaves=case.run.host, version=version, previous=version, until=until)
    if move is None:
        return update
    changes: dict[str, Any] = {}
    if (chosen := made.get(d.SetMoveStandby)) is not None:
        changes = {"standby": chosen.standby, "failed": move.failed + chosen.failed}
    for added in made.every(d.AddStandby):
        if added.for_move:
            driver = None if added.newest else case.run
            update.spec = standby_spec(case.job, driver, locations, case.clusters, platform)
            changes["standby"] = update.spec.run
    if (handed := made.get(d.HandOver)) is not None:
        changes |= {"standby": handed.run, "handed_at": moment}
        update.successor = _standby(case, handed.run)[1]
    promoted = made.get(d.PromoteStandby)
    if made.get(d.AdoptStandby) is not None or (promoted is not None and promoted.run == move.standby):
        changes["taken_at"] = moment
    if (reverted := made.get(d.RevertVersion)) is not None:
        changes["failure"] = reverted.failure
    if changes:
        update.after = move.model_copy(update=changes)
    return update


async def write(
    session: AsyncSession,
    case: JobCase,
    job: JobRow,
    made: d.Decided,
    move: MoveUpdate,
    locations: CheckpointLocations,
    platform: str,
) -> list[tuple[StandbyRow, RunRow]]:
    """Write the decisions about standbys and the planned move; return the added standbys with their runs.

    The row `job` already has `move.columns`.
    """
    for dropped in made.every(d.DropStandby):
        await _drop(session, *_standby(case, dropped.run))
    added = []
    for decision in made.every(d.AddStandby):
        driver = None if decision.newest else case.run
        spec = move.spec if decision.for_move else None
        spec = spec or standby_spec(job, driver, locations, case.clusters, platform)
        host = await open_host(session, decision.host)
        run = await runs.create(session, job, host, spec, why=decision.why)
        added.append((await standbys.create(session, job, spec, host.id, decision.why), run))
        move.successor = run if decision.for_move else move.successor
    if made.get(d.BeginMove) is not None:
        events.append(session, "job.move.began", job=job.id, data={"cause": "drain", "operation": None})
    if (handed := made.get(d.HandOver)) is not None and handed.claim:
        move.successor = await promote(session, case, job, handed.run)
    if (ended := made.get(d.EndMove)) is not None and move.before is not None:
        await _dismiss(session, job, move.before, move.successor)
        await planned_moves.end(session, job, move.before, ended.failure)
    return added


async def promote(session: AsyncSession, case: JobCase, job: JobRow, standby_id: str, **changes: Any) -> RunRow:
    """Make a standby of `case` the job's driver, and return its changed run.

    The run continues the counts of attempts and failures of the previous driver's run; `changes` are other fields of
    its specification to change.
    """
    (standby, run), previous = _standby(case, standby_id), case.run
    attempts, failures = (previous.attempts, previous.consecutive_failures) if previous is not None else (0, 0)
    restart = run.spec.restart.model_copy(update={"earlier_failures": failures})
    changes |= {"standby": False, "earlier_attempts": attempts, "restart": restart}
    # The run before the standby: reports of agents take their locks in the same order.
    run = await runs.change_spec(session, run, **changes)
    standby = await standbys.move(session, standby, StandbyState.PROMOTING)
    if run.driver_state == "RUNNING":  # it promoted itself
        await standbys.move(session, standby, StandbyState.PROMOTED)
    host = await session.get(HostRow, run.host)
    if host is not None:
        await recoveries.record_placement(session, job.id, host.name, standby=run.id)
    return run


async def open_host(session: AsyncSession, host_id: str) -> HostRow:
    """Return the host with this id; `ConcurrentUpdate` if the host does not accept drivers any more."""
    host = await session.get(HostRow, host_id, populate_existing=True)
    if host is None or host.state != HostState.READY:
        raise ConcurrentUpdate(f"Host {host_id} accepts no driver.")
    return host


def _standby(case: JobCase, run_id: str) -> tuple[StandbyRow, RunRow]:
    return next((standby, run) for standby, run in case.standbys if run.id == run_id)


async def _drop(session: AsyncSession, standby: StandbyRow, run: RunRow) -> None:
    ended = run.ended_at is not None or run.state == "LOST"
    if run.ended_at is None:  # the run before the standby, as in `promote`
        await runs.change_spec(session, run, desired="ABSENT")
    await standbys.move(session, standby, StandbyState.FAILED if ended else StandbyState.RETIRED)


async def _dismiss(session: AsyncSession, job: JobRow, move: Moving, successor: RunRow | None) -> None:
    """End a standby that received the hand-over and did not take over; one that only waits stays."""
    if successor is None or successor.id == job.run or move.handed_at is None or successor.spec.standby:
        return
    if successor.ended_at is None:
        await runs.change_spec(session, successor, desired="ABSENT")
    standby = await session.get(StandbyRow, successor.id, populate_existing=True)
    if standby is not None:
        await standbys.move(session, standby, StandbyState.FAILED)
