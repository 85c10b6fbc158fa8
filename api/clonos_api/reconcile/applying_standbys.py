"""Writes the decisions about standbys and planned moves: new, ended and promoted standbys, and the state of the
move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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


@dataclass
class StandbyUpdate:
    """The result of `write`: the added standbys, and the run that became the job's run, if any."""

    added: list[tuple[StandbyRow, RunRow]] = field(default_factory=list)
    adopted: RunRow | None = None


def update_move(
    case: JobCase, decisions: Sequence[d.Decision], locations: CheckpointLocations, moment: datetime, platform: str
) -> MoveUpdate:
    """Computes the changes that `decisions` make to the job's planned move; writes nothing."""
    before = case.job.moving
    update = MoveUpdate(before, before, successor=case.successor)
    for decision in decisions:
        move = update.after
        match decision:
            case d.BeginMove() if case.run is not None:
                version = case.run.spec.version
                until = moment + timedelta(seconds=decision.within_s)
                update.after = Moving(
                    cause="drain", leaves=case.run.host, version=version, previous=version, until=until
                )
            case d.AddStandby(for_move=True) if move is not None:
                driver = None if decision.newest else case.run
                update.spec = standby_spec(case.job, driver, locations, case.clusters, platform)
                update.after = move.model_copy(update={"standby": update.spec.run})
            case d.SetMoveStandby() if move is not None:
                failed = move.failed + decision.failed
                update.after = move.model_copy(update={"standby": decision.standby, "failed": failed})
            case d.HandOver() if move is not None:
                update.after = move.model_copy(update={"standby": decision.run, "handed_at": moment})
                update.successor = next(run for _, run in case.standbys if run.id == decision.run)
            case d.AdoptStandby() if move is not None:
                update.after = move.model_copy(update={"taken_at": moment})
            case d.PromoteStandby() if move is not None and decision.run == move.standby:
                update.after = move.model_copy(update={"taken_at": moment})
            case d.RevertVersion() if move is not None:
                update.after = move.model_copy(update={"failure": decision.failure})
            case d.EndMove():
                update.after = None
            case _:
                pass
    return update


async def write(
    session: AsyncSession,
    case: JobCase,
    job: JobRow,
    decisions: Sequence[d.Decision],
    move: MoveUpdate,
    locations: CheckpointLocations,
    platform: str,
) -> StandbyUpdate:
    """Writes the decisions about standbys and the planned move. The row `job` already has `move.columns`."""
    update = StandbyUpdate()
    for decision in decisions:
        match decision:
            case d.AddStandby():
                spec = move.spec if decision.for_move else None
                driver = None if decision.newest else case.run
                spec = spec or standby_spec(job, driver, locations, case.clusters, platform)
                host = await open_host(session, decision.host)
                run = await runs.create(session, job, host, spec, why=decision.why)
                standby = await standbys.create(session, job, spec, host.id, decision.why)
                update.added.append((standby, run))
                if decision.for_move:
                    move.successor = run
            case d.DropStandby():
                await _drop(session, *_standby(case, decision.run))
            case d.BeginMove():
                events.append(session, "job.move.began", job=job.id, data={"cause": "drain", "operation": None})
            case d.HandOver(claim=True):
                standby, run = _standby(case, decision.run)
                move.successor = await promote(session, job, standby, run, case.run)
            case d.AdoptStandby():
                update.adopted = move.successor
            case d.EndMove(failure=failure) if move.before is not None:
                await _dismiss(session, job, move.before, move.successor)
                await planned_moves.end(session, job, move.before, failure)
            case _:
                pass
    return update


async def promote(
    session: AsyncSession, job: JobRow, standby: StandbyRow, run: RunRow, previous: RunRow | None, **changes: Any
) -> RunRow:
    """Makes a standby the job's driver, and returns the changed `run` of the standby.

    The run continues the counts of attempts and failures of the `previous` driver's run; `changes` are other fields of
    its specification to change.
    """
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
    """Returns the host with this id; `ConcurrentUpdate` if the host does not accept drivers any more."""
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
    """Ends a standby that received the hand-over and did not take over; one that only waits stays."""
    if successor is None or successor.id == job.run or move.handed_at is None or successor.spec.standby:
        return
    if successor.ended_at is None:
        await runs.change_spec(session, successor, desired="ABSENT")
    standby = await session.get(StandbyRow, successor.id, populate_existing=True)
    if standby is not None:
        await standbys.move(session, standby, StandbyState.FAILED)
