"""Writes what is decided about a planned move: its record in the job's row, and its standby."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import Fenced
from clonos.resources.hosts import HostState, RunOrder
from clonos.standby.states import StandbyState
from clonos_api.reconcile import writes as w
from clonos_api.reconcile.orders import standby_order
from clonos_api.reconcile.reading import Case, Place
from clonos_api.store import events, moves, recoveries, runs, standbys
from clonos_api.store.moves import Moving
from clonos_api.store.tables import AgentRow, JobRow, RunRow, StandbyRow


@dataclass
class Planned:
    """What a decision changes about a job's planned move.

    Attributes:
        before: The move, as it was.
        after: As it is then.
        order: Of the standby that is placed for it.
        relief: The run that is to take over.
        placed: The standby that was placed, with its run.
    """

    before: Moving | None
    after: Moving | None
    order: RunOrder | None = None
    relief: RunRow | None = None
    placed: list[tuple[StandbyRow, RunRow]] = field(default_factory=list)

    @property
    def columns(self) -> dict[str, Any]:
        """The job's columns that change."""
        if self.after == self.before:
            return {}
        return {"moving": None if self.after is None else moves.kept(self.after)}


def plan(case: Case, writes: Sequence[w.Write], place: Place, moment: datetime) -> Planned:
    """What is to be written of a decision; nothing is yet."""
    before = moves.of(case.job)
    planned = Planned(before, before, relief=case.relief)
    for one in writes:
        after = planned.after
        match one:
            case w.BeginMove() if case.run is not None:
                version = case.run.order["version"]
                until = moment + timedelta(seconds=one.within_s)
                planned.after = Moving(
                    cause="drain", leaves=case.run.agent, version=version, previous=version, until=until
                )
            case w.PlaceStandby() if after is not None:
                planned.order = standby_order(case.job, None if one.newest else case.run, place)
                planned.after = after.model_copy(update={"standby": planned.order.run})
            case w.Note() if after is not None:
                planned.after = after.model_copy(update={"standby": one.standby, "failed": after.failed + one.failed})
            case w.HandOver() if after is not None:
                planned.after = after.model_copy(update={"standby": one.run, "handed_at": moment})
                planned.relief = next(run for _, run in case.standbys if run.id == one.run)
            case w.Take() if after is not None:
                planned.after = after.model_copy(update={"taken_at": moment})
            case w.Promote() if after is not None and one.run == after.standby:
                planned.after = after.model_copy(update={"taken_at": moment})
            case w.Revert() if after is not None:
                planned.after = after.model_copy(update={"failure": one.failure})
            case w.EndMove():
                planned.after = None
            case _:
                pass
    return planned


async def write(
    session: AsyncSession, case: Case, job: JobRow, planned: Planned, writes: Sequence[w.Write]
) -> RunRow | None:
    """Write it; `job` has the columns already. The run that took over, if one did.

    Raises:
        Fenced: Somebody changed a row since it was read, or the host takes no driver any more.
    """
    taken: RunRow | None = None
    for one in writes:
        match one:
            case w.BeginMove():
                events.append(session, "job.move.began", job=job.id, data={"cause": "drain", "operation": None})
            case w.PlaceStandby() if planned.order is not None:
                await _place(session, job, planned, planned.order, one)
            case w.HandOver() if one.claim:
                await _hand_over(session, case, job, planned)
            case w.Take():
                taken = planned.relief
            case w.EndMove(failure=failure) if planned.before is not None:
                await _dismiss(session, job, planned.before, planned.relief)
                await moves.end(session, job, planned.before, failure)
            case _:
                pass
    return taken


async def _place(session: AsyncSession, job: JobRow, planned: Planned, order: RunOrder, wanted: w.PlaceStandby) -> None:
    agent = await session.get(AgentRow, wanted.agent, populate_existing=True)
    if agent is None or agent.state != HostState.READY:
        raise Fenced(f"Host {wanted.agent} takes no driver any more.")
    planned.relief = await runs.create(session, job, agent, order, why=wanted.why)
    planned.placed = [(await standbys.create(session, job, order, agent.id, wanted.why), planned.relief)]


async def _hand_over(session: AsyncSession, case: Case, job: JobRow, planned: Planned) -> None:
    assert planned.relief is not None
    standby = next(row for row, run in case.standbys if run.id == planned.relief.id)
    planned.relief = await take_over(session, job, standby, planned.relief, case.run)


async def take_over(
    session: AsyncSession, job: JobRow, standby: StandbyRow, run: RunRow, before: RunRow | None, **changes: Any
) -> RunRow:
    """Order a standby to be the driver.

    Args:
        session: A transaction of the leader's.
        job: The job.
        standby: Its standby.
        run: And that one's run.
        before: The job's run until now: attempts, and falls in a row, go on from there.
        changes: Of the order, besides.
    """
    order = RunOrder.model_validate(run.order)
    base, in_row = (before.attempts, before.in_row) if before is not None else (0, 0)
    restart = order.restart.model_copy(update={"failed_before": in_row})
    changes |= {"standby": False, "attempt_base": base, "restart": restart}
    # The run first, then the standby: so does who takes in what its agent tells.
    run = await runs.order(session, run, order.model_copy(update=changes))
    standby = await standbys.move(session, standby, StandbyState.PROMOTING)
    if run.driver_state == "RUNNING":  # it helped itself
        await standbys.move(session, standby, StandbyState.PROMOTED)
    agent = await session.get(AgentRow, run.agent)
    if agent is not None:
        await recoveries.placed(session, job.id, agent.name, standby=run.id)
    return run


async def _dismiss(session: AsyncSession, job: JobRow, moving: Moving, relief: RunRow | None) -> None:
    """A standby that was told to take over and did not is ended; one that only waits may be wanted still."""
    if relief is None or relief.id == job.run or moving.handed_at is None or relief.order.get("standby"):
        return
    if relief.ended_at is None:
        order = RunOrder.model_validate(relief.order)
        await runs.order(session, relief, order.model_copy(update={"goal": "GONE"}))
    standby = await session.get(StandbyRow, relief.id, populate_existing=True)
    if standby is not None:
        await standbys.move(session, standby, StandbyState.FAILED)
