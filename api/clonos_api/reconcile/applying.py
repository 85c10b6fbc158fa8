"""Writes all decisions about one job in one transaction, with compare-and-set on each row.

Rows are changed in this order, to prevent deadlocks: job, runs, standbys, hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import StartPointMissing
from clonos.resources.hosts import RunSpec
from clonos.resources.jobs import DesiredState, Failure, JobState
from clonos_api.reconcile import applying_standbys
from clonos_api.reconcile import decisions as d
from clonos_api.reconcile.checkpoints import CheckpointLocations
from clonos_api.reconcile.load import JobCase
from clonos_api.reconcile.run_specs import driver_spec
from clonos_api.reconcile.saving import begin_save, give_up
from clonos_api.reconcile.states.failures import savepoint_given_up
from clonos_api.reconcile.transitions import Intent, allowed, begins_new_start, new_start
from clonos_api.store import generations, jobs, platform, recoveries, runs
from clonos_api.store.db.clock import clock, now
from clonos_api.store.db.commit_hooks import wait_for_disk
from clonos_api.store.tables import GenerationRow, HostRow, JobRow, RunRow, SavepointRow


async def apply(
    session: AsyncSession, case: JobCase, decisions: Sequence[d.Decision], locations: CheckpointLocations
) -> JobCase:
    """Write all decisions about one job in a transaction of the leader; return `case` with the changed rows."""
    made, moment, previous = d.Decided(decisions), await now(session), case.run
    placed, promoted = made.get(d.PlaceRun), made.get(d.PromoteStandby)
    reverted, ended = made.get(d.RevertVersion), made.get(d.EndMove)
    identity = await platform.identity(session) if placed or made.every(d.AddStandby) else ""
    spec = await _spec_of_placed(session, case, locations, identity) if placed else None
    move = applying_standbys.update_move(case, made, locations, moment, identity)
    job = case.job
    if reverted is not None:
        job = await jobs.revert(session, job, reverted.version, run=None)
    elif ended is not None and ended.version is not None:
        job = await jobs.revert(session, job, ended.version)
    job = await _update_job(session, job, made, spec, moment, move.columns)
    if (begun := made.get(d.BeginRecovery)) is not None:
        await _begin_recovery(session, job, previous, begun, moment, promoted.run if promoted else None)
    await _lock_runs(session, made, previous if promoted else None)
    run = await _update_run(session, previous, made)
    if placed is not None or made.every(d.TakeSavepoint):
        # They give out a name that is used only once: the key of a new lineage, the folder of a savepoint.
        wait_for_disk(session)
    if placed is not None and spec is not None:
        host = await applying_standbys.open_host(session, placed.host)
        run = await runs.create(session, job, host, spec, why=placed.why)
        await recoveries.record_placement(session, job.id, host.name)
    if promoted is not None:
        changes = {} if reverted is None else {"version": job.version, "accept_new_code": True}
        run = await applying_standbys.promote(session, case, job, promoted.run, **changes)
    added = await applying_standbys.write(session, case, job, made, move, locations, identity)
    run = move.successor if made.get(d.AdoptStandby) is not None else run
    savepoint = await _update_savepoint(session, case, job, made, locations)
    handed = made.get(d.HandOver)
    used = {dropped.run for dropped in made.every(d.DropStandby)} | ({promoted.run} if promoted is not None else set())
    used |= {handed.run} if handed is not None and handed.claim else set()
    replaced = previous is not None and run is not None and (run.id != previous.id or run.state == "LOST")
    unreachable = placed is not None and replaced and previous is not None and previous.ended_at is None
    return JobCase(
        job,
        run if job.run is not None else None,
        claimed=case.claimed and run is previous,
        unreachable_runs=case.unreachable_runs + unreachable,
        savepoint=savepoint,
        start=case.start if job.start_from else None,
        failed_domain=await _lost_domain(session, previous, made) or case.failed_domain,
        standbys=[rows for rows in (*case.standbys, *added) if rows[1].id not in used],
        successor=move.successor if job.moving else None,
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


async def _lost_domain(session: AsyncSession, run: RunRow | None, made: d.Decided) -> str | None:
    """Return the failure domain of the host that was just lost: the placement that follows in this round avoids it."""
    if run is None or made.get(d.MarkLost) is None:
        return None
    host = await session.get(HostRow, run.host)
    return None if host is None else host.failure_domain


async def _update_job(
    session: AsyncSession,
    job: JobRow,
    made: d.Decided,
    spec: RunSpec | None,
    moment: datetime,
    columns: dict[str, Any],
) -> JobRow:
    columns, transition = dict(columns), made.get(d.Transition)
    # Acknowledged without a driver: the next placement is a new start, with the newest version.
    if made.get(d.AcknowledgeRestart) or (transition and begins_new_start(JobState(job.state), transition.to)):
        columns |= new_start(job.restart_nonce)
    if (limit := made.get(d.SetDeadline)) is not None:
        columns["failure"] = _at(limit.failure, moment)
        columns["state_deadline"] = None if limit.within_s is None else clock(limit.within_s)
    if (first := made.get(d.RecordFirstClaim)) is not None:
        columns |= {"start_from": None, "resolutions": None, "adopt": False, "home": first.host}
    driver = made.get(d.PromoteStandby) or made.get(d.AdoptStandby) or spec
    if driver is not None:
        columns["run"] = driver.run
    if transition is not None and transition.to is JobState.FAILED and transition.failure is not None:
        transition = replace(transition, failure=await _with_way_back(session, job, transition.failure))
    if transition is not None and transition.to is JobState.FAILED and transition.failure is not None:
        # After a missing point, the next start continues with the job's own checkpoint.
        columns |= {"start_from": None} if transition.failure.error == StartPointMissing.slug else {}
    if transition is not None:
        intent = Intent(DesiredState(job.desired_state), job.restart_nonce != job.observed_nonce)
        return await jobs.move(
            session,
            job,
            JobState(transition.to),
            allowed=partial(allowed, intent=intent),
            deadline_s=transition.within_s,
            failure=_at(transition.failure, moment),
            **columns,
        )
    # Also decisions that change only a run advance the version of the job's row: of two leaders, one succeeds.
    return await jobs.change(session, job, **columns)


async def _with_way_back(session: AsyncSession, job: JobRow, failure: Failure) -> Failure:
    """Return the failure of a job with the command that continues: a start, or for code that failed the version
    before.
    """
    run = await session.get(RunRow, job.run) if job.run is not None else None
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
    run: RunRow | None,
    decision: d.BeginRecovery,
    moment: datetime,
    promoted: str | None,
) -> None:
    assert run is not None
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
    decision: d.BeginRecovery,
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


async def _lock_runs(session: AsyncSession, made: d.Decided, replaced: RunRow | None) -> None:
    """Locks the runs that change in the order in which reports of agents lock them."""
    changed = [dropped.run for dropped in made.every(d.DropStandby)]
    changed += [decision.run for decision in (made.get(d.PromoteStandby), made.get(d.SetTakeoverWait)) if decision]
    await runs.lock(session, changed if replaced is None else [*changed, replaced.id])


async def _update_run(session: AsyncSession, run: RunRow | None, made: d.Decided) -> RunRow | None:
    if run is None:
        return None
    changes: dict[str, Any] = {}
    if made.get(d.MarkLost) is not None:
        run = await runs.lose(session, run)
        changes["desired"] = "ABSENT"
    if made.get(d.RecordFirstClaim) is not None and (run.spec.accept_new_code or run.spec.adopt):
        # The driver has recorded the decision about the epochs that were in doubt at this start, and the log is that
        # of this control plane.
        changes |= {"accept_new_code": False, "adopt": False}
    if (wanted := made.get(d.UpdateRun)) is not None:
        changes |= {"desired": wanted.desired, "stop_mode": wanted.mode}
        changes["stop_timeout_s"] = max(wanted.timeout_s, 0.001)
    if (waits := made.get(d.SetTakeoverWait)) is not None:
        changes["restart"] = run.spec.restart.model_copy(update={"takeover_wait_s": waits.seconds})
    if (follows := made.get(d.ContinueWith)) is not None:
        changes |= {"desired": "ABSENT", "next": follows.next}
    run = await runs.change_spec(session, run, **changes) if changes else run
    return await runs.end(session, run) if made.get(d.CloseRun) is not None else run


async def _update_savepoint(
    session: AsyncSession,
    case: JobCase,
    job: JobRow,
    made: d.Decided,
    locations: CheckpointLocations,
) -> SavepointRow | None:
    if (taken := made.get(d.TakeSavepoint)) is not None:
        return await begin_save(session, job, taken.host, case.checkpoint_of_run(locations), locations)
    if made.get(d.GiveUpSavepoint) is not None and case.savepoint is not None:
        hosts = [case.run.host] if case.run else []
        return await give_up(session, case.savepoint, hosts, savepoint_given_up())
    return case.savepoint
