"""Writes one decision: all of it in one transaction, with the leader's token checked and compare-and-set on each row.

Rows are changed in the store's order: job, runs, agents.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import Fenced
from clonos.resources.hosts import HostState, RunOrder
from clonos.resources.jobs import DesiredState, Failure, JobState
from clonos_api.reconcile import planning
from clonos_api.reconcile import writes as w
from clonos_api.reconcile.orders import run_order
from clonos_api.reconcile.reading import Case, Place
from clonos_api.reconcile.saving import begin_save, give_up
from clonos_api.reconcile.states.failures import untaken
from clonos_api.reconcile.transitions import Asked, allowed
from clonos_api.store import generations, jobs, recoveries, runs
from clonos_api.store.clock import clock, now
from clonos_api.store.tables import AgentRow, GenerationRow, JobRow, RunRow


async def apply(session: AsyncSession, case: Case, writes: list[w.Write], place: Place) -> Case:
    """Write a decision; the case as it is then.

    Args:
        session: A transaction of the leader's.
        case: What was decided about.
        writes: The decision.
        place: Where checkpoints are.

    Raises:
        Fenced: Somebody changed a row since it was read, or another replica leads.
    """
    moment = await now(session)
    before = case.run
    planned = planning.plan(case, writes, place, moment)
    placed = next((one for one in writes if isinstance(one, w.Place)), None)
    order = run_order(case.job, before, place, case.restore(place)) if placed else None
    reverted = next((one for one in writes if isinstance(one, w.Revert)), None)
    promoted = next((one for one in writes if isinstance(one, w.Promote)), None)
    job = case.job if reverted is None else await jobs.revert(session, case.job, reverted.version)
    job = await _job(session, job, writes, order, moment, planned.columns)
    for one in writes:
        if isinstance(one, w.Fall):
            await _fall(session, job, before, one, moment, promoted.run if promoted is not None else None)
    if promoted is not None:
        await runs.lock(session, [promoted.run, *([before.id] if before is not None else [])])
    run = await _run(session, before, writes)
    if placed is not None and order is not None:
        agent = await session.get(AgentRow, placed.agent, populate_existing=True)
        if agent is None or agent.state != HostState.READY:
            raise Fenced(f"Host {placed.agent} takes no driver any more.")
        run = await runs.create(session, job, agent, order, why=placed.why)
        await recoveries.placed(session, job.id, agent.name)
    if promoted is not None:
        again = {} if reverted is None else {"version": job.version, "accept_code": True}
        standby, waited = next(one for one in case.standbys if one[1].id == promoted.run)
        run = await planning.take_over(session, job, standby, waited, before, **again)
    run = await planning.write(session, case, job, planned, writes) or run
    savepoint = case.savepoint
    for one in writes:
        if isinstance(one, w.Save):
            savepoint = await begin_save(session, job, one.agent, case.checkpoint(place), place)
        elif isinstance(one, w.GiveUpSave) and savepoint is not None:
            savepoint = await give_up(session, savepoint, [before.agent] if before else [], untaken())
    ordered = {one.run for one in writes if isinstance(one, w.Promote) or (isinstance(one, w.HandOver) and one.claim)}
    left = before is not None and run is not None and (run.id != before.id or run.state == "LOST")
    return Case(
        job,
        run if job.run is not None else None,
        claimed=case.claimed and run is before,
        ghosts=case.ghosts + (placed is not None and left and before.ended_at is None),  # type: ignore[union-attr]
        savepoint=savepoint,
        start=case.start if job.start_from else None,
        failed_domain=case.failed_domain,
        standbys=[one for one in (*case.standbys, *planned.placed) if one[1].id not in ordered],
        relief=planned.relief if job.moving else None,
        relief_claimed=case.relief_claimed,
    )


async def _job(
    session: AsyncSession,
    job: JobRow,
    writes: list[w.Write],
    order: RunOrder | None,
    moment: datetime,
    columns: dict[str, Any],
) -> JobRow:
    move: w.Move | None = None
    for one in writes:
        match one:
            case w.Move():
                move = one
                if one.fresh:
                    columns |= {"run": None, "stop": None, "observed_nonce": job.restart_nonce}
            case w.Wait():
                columns |= {"failure": _failure(one.failure, moment)}
                columns["state_deadline"] = None if one.within_s is None else clock(one.within_s)
            case w.Heed():
                columns["observed_nonce"] = job.restart_nonce
            case w.Settle():
                columns |= {"start_from": None, "home": one.agent}
            case w.Place() if order is not None:
                columns["run"] = order.run
            case w.Promote() | w.Take():
                columns["run"] = one.run
            case _:
                pass
    if move is not None:
        asked = Asked(DesiredState(job.desired_state), job.restart_nonce != job.observed_nonce)
        failure = move.failure.model_copy(update={"at": move.failure.at or moment}) if move.failure else None
        return await jobs.move(
            session,
            job,
            JobState(move.to),
            allowed=partial(allowed, asked=asked),
            deadline_s=move.within_s,
            failure=failure,
            **columns,
        )
    # Each decision takes the job's token, also one that only changes a run: two leaders must not both make it.
    return await jobs.change(session, job, **columns)


def _failure(failure: Failure | None, moment: datetime) -> dict[str, Any] | None:
    if failure is None:
        return None
    return failure.model_copy(update={"at": failure.at or moment}).model_dump(mode="json")


async def _fall(
    session: AsyncSession, job: JobRow, run: RunRow | None, fall: w.Fall, moment: datetime, follower: str | None
) -> None:
    assert run is not None
    if fall.cause == "restart":
        return  # the driver is there, and tells of it itself
    newest = await generations.newest(session, job.id) if follower is not None else None
    if newest is not None and newest.run == follower:
        # It helped itself, and has told of its claim already.
        await _helped(session, job, run, fall, newest)
        return
    # The attempt that follows the one that fell.
    after = run.attempts + (run.state in ("EXITED", "PENDING"))
    if fall.cause == "crash" and await generations.claimed_by(session, job.id, run.id, after):
        # The driver has told more than its agent: that there is a recovery, or was; not why.
        await recoveries.explain(session, job.id, fall.failure)
        return
    agent = await session.get(AgentRow, run.agent)
    lost = fall.cause == "host-lost" and agent is not None
    # When the agent saw it, by its clock; a failure is also told while the attempt after it runs.
    fell_at = fall.failure.at if fall.failure is not None and not lost else None
    if fell_at is not None and run.started_at is not None and fell_at < run.started_at:
        fell_at = None
    await recoveries.begin(
        session,
        job.id,
        cause=fall.cause,
        failed_generation=job.generation,
        from_agent=agent.name if agent else "",
        at=agent.heartbeat_at if lost and agent else fell_at or moment,
        failure=fall.failure,
        detected_at=moment,
    )


async def _helped(session: AsyncSession, job: JobRow, run: RunRow, fall: w.Fall, newest: GenerationRow) -> None:
    """Say of the recovery that a claim made what only we know; or begin it, if nobody did."""
    more = {"cause": fall.cause, "standby": newest.run}
    if await recoveries.explain(session, job.id, fall.failure, generation=newest.generation, **more):
        return
    agent = await session.get(AgentRow, run.agent)
    row = await recoveries.begin(
        session,
        job.id,
        cause=fall.cause,
        failed_generation=newest.generation - 1,
        from_agent=agent.name if agent else "",
        at=newest.claimed_at,
        failure=fall.failure,
    )
    row.body = {**row.body, "generation": newest.generation, **more}
    await session.flush()


async def _run(session: AsyncSession, run: RunRow | None, writes: list[w.Write]) -> RunRow | None:
    for one in writes:
        match one:
            case w.Lose():
                assert run is not None
                run = await runs.lose(session, run)
                run = await _ordered(session, run, goal="GONE")
            case w.Order():
                assert run is not None
                run = await _ordered(
                    session, run, goal=one.goal, stop_mode=one.mode, stop_timeout_s=max(one.timeout_s, 0.001)
                )
            case w.Close():
                assert run is not None
                run = await runs.end(session, run)
            case _:
                pass
    return run


async def _ordered(session: AsyncSession, run: RunRow, **changes: Any) -> RunRow:
    order = RunOrder.model_validate(run.order)
    return await runs.order(session, run, order.model_copy(update=changes))
