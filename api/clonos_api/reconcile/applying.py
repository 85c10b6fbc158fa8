"""Writes a decision about one job in one transaction, with compare-and-set on each row.

Each part is written once. Rows are changed in this order, to prevent deadlocks: job, runs, standbys, hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import ConcurrentUpdate
from clonos.resources.hosts import HostState, RunSpec
from clonos.resources.jobs import DesiredState, Failure, JobState
from clonos.standby.states import StandbyState
from clonos_api.reconcile.checkpoints import CheckpointLocations
from clonos_api.reconcile.decisions import BeginRecovery, Decision, MoveChange
from clonos_api.reconcile.load import JobCase
from clonos_api.reconcile.run_specs import driver_spec, standby_spec
from clonos_api.reconcile.saving import begin_save, give_up
from clonos_api.reconcile.states.failures import savepoint_given_up
from clonos_api.reconcile.transitions import Intent, allowed, new_start, rule_of
from clonos_api.store import events, generations, jobs, planned_moves, platform, recoveries, runs, standbys
from clonos_api.store.columns import Moving
from clonos_api.store.db.clock import clock, now
from clonos_api.store.db.commit_hooks import wait_for_disk
from clonos_api.store.tables import GenerationRow, HostRow, JobRow, RunRow, SavepointRow, StandbyRow


async def apply(session: AsyncSession, case: JobCase, made: Decision, locations: CheckpointLocations) -> JobCase:
    """Write a decision about one job in a transaction of the leader; return `case` with the changed rows."""
    moment, previous, place = await now(session), case.run, made.run.place
    before = case.job.moving  # the row of the job changes
    identity = await platform.identity(session) if place is not None or made.standbys.add else ""
    spec = await _spec_of_placed(session, case, locations, identity) if place is not None else None
    specs = [
        standby_spec(case.job, None if added.newest else previous, locations, case.clusters, identity)
        for added in made.standbys.add
    ]
    job = await _update_job(session, case, made, spec, specs, moment)
    if made.recovery is not None and previous is not None:
        await _begin_recovery(session, job, previous, made.recovery, moment, made.job.driver)
    await _lock_runs(session, previous, made)
    run = await _update_run(session, previous, made)
    if place is not None or made.job.savepoint == "take":
        # They give out a name that is used only once: the key of a new lineage, the folder of a savepoint.
        wait_for_disk(session)
    if place is not None and spec is not None:
        host = await _open_host(session, place.host)
        run = await runs.create(session, job, host, spec, why=place.why)
        await recoveries.record_placement(session, job.id, host.name)
    changed = await _update_standbys(session, case, job, made, specs, before)
    if made.job.driver is not None:
        run = changed.of(made.job.driver)
    replaced = previous is not None and run is not None and (run.id != previous.id or run.state == "LOST")
    unreachable = place is not None and replaced and previous is not None and previous.ended_at is None
    return JobCase(
        job,
        run if job.run is not None else None,
        claimed=case.claimed and run is previous,
        unreachable_runs=case.unreachable_runs + unreachable,
        savepoint=await _update_savepoint(session, case, job, made, locations),
        start=case.start if job.start_from else None,
        failed_domain=await _lost_domain(session, previous, made) or case.failed_domain,
        standbys=changed.waiting,
        successor=changed.of(job.moving.standby) if job.moving is not None else None,
        successor_claimed=case.successor_claimed,
        clusters=case.clusters,
    )


async def _spec_of_placed(
    session: AsyncSession, case: JobCase, locations: CheckpointLocations, identity: str
) -> RunSpec:
    following = case.run.spec.next if case.run is not None else None
    other = await jobs.stored_version(session, case.job, following.version) if following is not None else None
    restore = case.restore(locations)
    return driver_spec(case.job, case.run, locations, case.clusters, restore, other, platform=identity)


async def _lost_domain(session: AsyncSession, run: RunRow | None, made: Decision) -> str | None:
    """Return the failure domain of the host that was just lost: the placement that follows in this round avoids it."""
    if run is None or not made.run.lost:
        return None
    host = await session.get(HostRow, run.host)
    return None if host is None else host.failure_domain


async def _update_job(
    session: AsyncSession,
    case: JobCase,
    made: Decision,
    spec: RunSpec | None,
    added: Sequence[RunSpec],
    moment: datetime,
) -> JobRow:
    job, change, state = case.job, made.job, made.job.state
    if made.move is not None and made.move.version is not None:
        # In a move that continues, the next run has that version; otherwise the job's run keeps its own.
        run = {} if made.move.after is None else {"run": None}
        job = await jobs.revert(session, job, made.move.version, **run)
    columns: dict[str, Any] = {}
    if (moving := _moving(case, made, added, moment)) != case.job.moving:
        columns["moving"] = moving
    if change.restart_acknowledged:
        # Without a driver: the next placement is a new start, with the newest version.
        columns |= new_start(job.restart_nonce)
    if change.first_claim and case.run is not None:
        columns |= {"start_from": None, "resolutions": None, "adopt": False, "home": case.run.host}
    if (driver := change.driver or (spec.run if spec is not None else None)) is not None:
        columns["run"] = driver
    if state is not None and state.to is not None:
        failure = await _with_way_back(session, job, state.failure) if state.to is JobState.FAILED else state.failure
        rule = rule_of(JobState(job.state), state.to)
        effects = rule.columns(job.restart_nonce, failure) if rule is not None else {}
        intent = Intent(DesiredState(job.desired_state), job.restart_nonce != job.observed_nonce)
        return await jobs.move(
            session,
            job,
            state.to,
            allowed=partial(allowed, intent=intent),
            deadline_s=state.within_s,
            failure=_at(failure, moment),
            **effects | columns,
        )
    if state is not None:
        columns["failure"] = _at(state.failure, moment)
        columns["state_deadline"] = None if state.within_s is None else clock(state.within_s)
    # Also decisions that change only a run advance the version of the job's row: of two leaders, one succeeds.
    return await jobs.change(session, job, **columns)


def _moving(case: JobCase, made: Decision, added: Sequence[RunSpec], moment: datetime) -> Moving | None:
    """Return the job's planned move after the decision, which adds standbys with the specifications `added`."""
    move = case.job.moving if made.move is None else made.move.after
    if move is None:
        return None
    chosen = (spec.run for addition, spec in zip(made.standbys.add, added, strict=True) if addition.for_move)
    standby = next(chosen, move.standby)
    taken = made.job.driver is not None and made.job.driver == standby
    return move.model_copy(update={"standby": standby, "taken_at": moment if taken else move.taken_at})


async def _with_way_back(session: AsyncSession, job: JobRow, failure: Failure | None) -> Failure | None:
    """Return the failure of a job with the command that continues: a start, or for code that failed the version
    before.
    """
    run = await session.get(RunRow, job.run) if job.run is not None else None
    if failure is None:
        return None
    if failure.domain == "environment":
        return failure.model_copy(update={"hint": f"{failure.hint} Then: `clonos job start {job.name}`.".strip()})
    if run is None or failure.domain != "user":
        return failure
    version = await jobs.worked(session, job, but=run.spec.version)
    if version is None and job.version == run.spec.version == 1:
        return failure  # no change can have caused it
    if version is None:
        back = (
            f"There is no version to go back to: no other version of job {job.name} finished an epoch and did not fail."
        )
    else:
        back = f"If the change caused it, go back to version {version}: `clonos job rollback {job.name} {version}`."
    return failure.model_copy(update={"hint": f"{failure.hint} {back}".strip()})


def _at(failure: Failure | None, moment: datetime) -> Failure | None:
    return None if failure is None else failure.model_copy(update={"at": failure.at or moment})


async def _begin_recovery(
    session: AsyncSession,
    job: JobRow,
    run: RunRow,
    decision: BeginRecovery,
    moment: datetime,
    promoted: str | None,
) -> None:
    if decision.cause == "restart":
        return  # the driver process continues and reports the recovery itself
    newest = await generations.newest(session, job.id) if promoted is not None else None
    if newest is not None and newest.run == promoted:
        # The standby promoted itself and has already reported its claim.
        await _explain_claim(session, job, run, decision, newest, standby=newest.run)
        return
    # The attempt that follows the failed one.
    attempt = run.attempts + (run.state in ("STOPPING", "EXITED", "PENDING"))
    if decision.cause in ("crash", "shutdown") and await generations.claimed_by(session, job.id, run.id, attempt):
        # The driver reported this recovery before its agent did, without the reason; the end of a driver that was
        # stopped is not a failure of the job.
        newest = await generations.newest(session, job.id)
        if decision.cause == "shutdown" and newest is not None:
            await _explain_claim(session, job, run, decision, newest)
        else:
            await recoveries.explain(session, job.id, decision.failure)
        return
    host = await session.get(HostRow, run.host)
    lost = decision.cause == "host-lost" and host is not None
    # The time of the failure by the agent's clock. A failure is also reported while the next attempt runs.
    failed_at = decision.failure.at if decision.failure is not None and not lost else None
    if failed_at is not None and run.started_at is not None and failed_at < run.started_at:
        failed_at = None
    await recoveries.begin(
        session,
        job.id,
        cause=decision.cause,
        failed_generation=job.generation,
        from_host=host.name if host else "",
        at=host.heartbeat_at if lost and host else failed_at or moment,
        failure=decision.failure,
        detected_at=moment,
    )


async def _explain_claim(
    session: AsyncSession,
    job: JobRow,
    run: RunRow,
    decision: BeginRecovery,
    newest: GenerationRow,
    **details: str,
) -> None:
    """Add the cause, and `details`, to the recovery that the claim `newest` began; begin it if the claim did not."""
    details = {"cause": decision.cause, **details}
    if await recoveries.explain(session, job.id, decision.failure, generation=newest.generation, **details):
        return
    host = await session.get(HostRow, run.host)
    row = await recoveries.begin(
        session,
        job.id,
        cause=decision.cause,
        failed_generation=newest.generation - 1,
        from_host=host.name if host else "",
        at=newest.claimed_at,
        failure=decision.failure,
    )
    row.body = msgspec.structs.replace(row.body, generation=newest.generation, **details)
    await session.flush()


async def _lock_runs(session: AsyncSession, run: RunRow | None, made: Decision) -> None:
    """Locks the runs that change in the order in which reports of agents lock them."""
    changed = [dropped.run for dropped in made.standbys.drop]
    if made.standbys.promote is not None:
        changed.append(made.standbys.promote)
    if run is not None and (made.standbys.promote is not None or made.run.takeover_wait_s is not None):
        changed.append(run.id)
    await runs.lock(session, changed)


async def _update_run(session: AsyncSession, run: RunRow | None, made: Decision) -> RunRow | None:
    if run is None:
        return None
    change = made.run
    changes: dict[str, Any] = {}
    if change.lost:
        run = await runs.lose(session, run)
        changes["desired"] = "ABSENT"
    if made.job.first_claim and (run.spec.accept_new_code or run.spec.adopt):
        # The driver has recorded the decision about the epochs that were in doubt at this start, and the log is that
        # of this control plane.
        changes |= {"accept_new_code": False, "adopt": False}
    if change.desired is not None:
        changes |= {"desired": change.desired, "stop_mode": change.mode}
        changes["stop_timeout_s"] = max(change.timeout_s, 0.001)
    if change.takeover_wait_s is not None:
        changes["restart"] = run.spec.restart.model_copy(update={"takeover_wait_s": change.takeover_wait_s})
    if change.next is not None:
        changes |= {"desired": "ABSENT", "next": change.next}
    run = await runs.change_spec(session, run, **changes) if changes else run
    return await runs.end(session, run) if change.closed else run


async def _update_savepoint(
    session: AsyncSession, case: JobCase, job: JobRow, made: Decision, locations: CheckpointLocations
) -> SavepointRow | None:
    if made.job.savepoint == "take" and case.run is not None:
        return await begin_save(session, job, case.run.host, case.checkpoint_of_run(locations), locations)
    if made.job.savepoint == "give-up" and case.savepoint is not None:
        hosts = [case.run.host] if case.run else []
        return await give_up(session, case.savepoint, hosts, savepoint_given_up())
    return case.savepoint


# Standbys and planned moves


@dataclass
class _Standbys:
    """The standbys of a job after a decision, with their runs."""

    waiting: list[tuple[StandbyRow, RunRow]]  # those that could take over
    runs: dict[str, RunRow]  # by id: of all standbys, also of promoted ones

    def of(self, standby: str | None) -> RunRow | None:
        """Return the run of a standby; None if it is not among them."""
        return self.runs.get(standby or "")


async def _update_standbys(
    session: AsyncSession,
    case: JobCase,
    job: JobRow,
    made: Decision,
    specs: Sequence[RunSpec],
    before: Moving | None,
) -> _Standbys:
    """Write the changes of the standbys, and the beginning or the end of the planned move, whose new state `job` has.

    `specs` are the specifications of the standbys that the decision adds, `before` is the move before it.
    """
    change, waiting = made.standbys, {run.id: (standby, run) for standby, run in case.standbys}
    changed = {run.id: run for run in (case.successor, *(run for _, run in case.standbys)) if run is not None}
    if change.promote is not None:
        changed[change.promote] = await _promote(session, case, job, *waiting.pop(change.promote), made.move)
    for dropped in change.drop:
        await _drop(session, *waiting.pop(dropped.run))
    for added, spec in zip(change.add, specs, strict=True):
        host = await _open_host(session, added.host)
        run = changed[spec.run] = await runs.create(session, job, host, spec, why=added.why)
        waiting[spec.run] = await standbys.create(session, job, spec, host.id, added.why), run
    if before is None and made.move is not None:
        events.append(session, "job.move.began", job=job.id, data={"cause": "drain", "operation": None})
    if before is not None and made.move is not None and made.move.after is None:
        await _dismiss(session, job, before, changed.get(before.standby or ""))
        await planned_moves.end(session, job, before, made.move.failure)
    return _Standbys(list(waiting.values()), changed)


async def _promote(
    session: AsyncSession, case: JobCase, job: JobRow, standby: StandbyRow, run: RunRow, move: MoveChange | None
) -> RunRow:
    """Let a standby claim the log, and return its changed run.

    The run continues the counts of attempts and failures of the previous driver's run. With the version that a failed
    upgrade (`move`) goes back to, it also gets the job's version, and accepts that the code changed.
    """
    previous = case.run
    attempts, failures = (previous.attempts, previous.consecutive_failures) if previous is not None else (0, 0)
    restart = run.spec.restart.model_copy(update={"earlier_failures": failures})
    changes: dict[str, Any] = {"standby": False, "earlier_attempts": attempts, "restart": restart}
    if move is not None and move.version is not None:
        changes |= {"version": job.version, "accept_new_code": True}
    # The run before the standby: reports of agents take their locks in the same order.
    run = await runs.change_spec(session, run, **changes)
    standby = await standbys.move(session, standby, StandbyState.PROMOTING)
    if run.driver_state == "RUNNING":  # it promoted itself
        await standbys.move(session, standby, StandbyState.PROMOTED)
    host = await session.get(HostRow, run.host)
    if host is not None:
        await recoveries.record_placement(session, job.id, host.name, standby=run.id)
    return run


async def _open_host(session: AsyncSession, host_id: str) -> HostRow:
    """Return the host with this id; `ConcurrentUpdate` if the host does not accept drivers any more."""
    host = await session.get(HostRow, host_id, populate_existing=True)
    if host is None or host.state != HostState.READY:
        raise ConcurrentUpdate(f"Host {host_id} accepts no driver.")
    return host


async def _drop(session: AsyncSession, standby: StandbyRow, run: RunRow) -> None:
    ended = run.ended_at is not None or run.state == "LOST"
    if run.ended_at is None:  # the run before the standby, as in `_promote`
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
