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
from clonos_api.reconcile import writes as w
from clonos_api.reconcile.orders import run_order
from clonos_api.reconcile.reading import Case, Place
from clonos_api.reconcile.saving import begin_save, give_up
from clonos_api.reconcile.states.failures import untaken
from clonos_api.reconcile.transitions import Asked, allowed
from clonos_api.store import generations, jobs, recoveries, runs
from clonos_api.store.clock import clock, now
from clonos_api.store.tables import AgentRow, JobRow, RunRow


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
    placed = next((one for one in writes if isinstance(one, w.Place)), None)
    order = run_order(case.job, before, place, case.restore(place)) if placed else None
    job = await _job(session, case.job, writes, order, moment)
    for one in writes:
        if isinstance(one, w.Fall):
            await _fall(session, job, before, one, moment)
    run = await _run(session, before, writes)
    if placed is not None and order is not None:
        agent = await session.get(AgentRow, placed.agent, populate_existing=True)
        if agent is None or agent.state != HostState.READY:
            raise Fenced(f"Host {placed.agent} takes no driver any more.")
        run = await runs.create(session, job, agent, order, why=placed.why)
        await recoveries.placed(session, job.id, agent.name)
    savepoint = case.savepoint
    for one in writes:
        if isinstance(one, w.Save):
            savepoint = await begin_save(session, job, one.agent, case.checkpoint(place), place)
        elif isinstance(one, w.GiveUpSave) and savepoint is not None:
            savepoint = await give_up(session, savepoint, [before.agent] if before else [], untaken())
    left = before is not None and run is not None and (run.id != before.id or run.state == "LOST")
    return Case(
        job,
        run if job.run is not None else None,
        claimed=case.claimed and run is before,
        ghosts=case.ghosts + (placed is not None and left and before.ended_at is None),  # type: ignore[union-attr]
        savepoint=savepoint,
        start=case.start if job.start_from else None,
        failed_domain=case.failed_domain,
    )


async def _job(
    session: AsyncSession, job: JobRow, writes: list[w.Write], order: RunOrder | None, moment: datetime
) -> JobRow:
    columns: dict[str, Any] = {}
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


async def _fall(session: AsyncSession, job: JobRow, run: RunRow | None, fall: w.Fall, moment: datetime) -> None:
    assert run is not None
    if fall.cause == "restart":
        return  # the driver is there, and tells of it itself
    # The attempt that follows the one that fell.
    after = run.attempts + (run.state in ("EXITED", "PENDING"))
    if fall.cause == "crash" and await generations.claimed_by(session, job.id, run.id, after):
        # The driver has told more than its agent: that there is a recovery, or was; not why.
        await recoveries.explain(session, job.id, fall.failure)
        return
    agent = await session.get(AgentRow, run.agent)
    lost = fall.cause == "host-lost" and agent is not None
    await recoveries.begin(
        session,
        job.id,
        cause=fall.cause,
        failed_generation=job.generation,
        from_agent=agent.name if agent else "",
        at=min(agent.heartbeat_at, moment) if lost and agent else moment,
        failure=fall.failure,
        detected_at=moment if lost else None,
    )


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
