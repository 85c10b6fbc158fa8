"""STARTING, RUNNING, RECOVERING: the job needs a driver that works.

STARTING and RECOVERING place a run and wait until its driver works, or give up at the deadline. RUNNING watches the
driver. In all three a ready standby takes over from a driver that has failed.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from clonos.errors import CLASSES, NoHost, StoppedWithAgent, Superseded
from clonos.resources.hosts import HostState
from clonos.resources.jobs import Failure, JobState, StopRequest
from clonos_api.reconcile.deadlines import CLAIM_S, PREPARE_S, RECOVER_S, due
from clonos_api.reconcile.decisions import (
    ABSENT,
    LOST,
    NOTHING,
    BeginRecovery,
    Decision,
    JobChange,
    MoveChange,
    RecoveryCause,
    RunChange,
    enter,
    promote,
    stay,
)
from clonos_api.reconcile.facts import JobFacts, RunFacts, StandbyFacts
from clonos_api.reconcile.placement import Fleet, Placement, has_room, place
from clonos_api.reconcile.states import failures, in_doubt, stopping
from clonos_api.store.columns import Moving

# Failures of a job whose driver waits.
_OUTAGES = frozenset(kind.slug for kind in CLASSES if kind.outage)

# The states


def starting(job: JobFacts, run: RunFacts | None, fleet: Fleet, now: datetime) -> Decision:
    """Decides for a STARTING job: places a run and waits for its first claim."""
    late = f"The driver of job {job.name} did not claim its log in time."
    return stopping.requested(job, run) or _until_running(job, run, fleet, now, CLAIM_S, late)


def running(job: JobFacts, run: RunFacts | None, fleet: Fleet, now: datetime) -> Decision:
    """Decides for a RUNNING job: recovers it after a failure of the driver, moves it off a draining host, or does
    nothing.
    """
    if first := stopping.requested(job, run) or _adopt_self_promoted(job, run, fleet):
        return first
    if run is None or run.discarded:
        return Decision(job=enter(JobState.RECOVERING, failure=job.failure))
    if run.done:
        return _driver_ended(job, run, fleet)
    if not fleet.alive(run.host):
        return _host_lost(job, run, fleet)
    if failover := _host_unresponsive(job, run, fleet):
        return failover
    if run.exited and (standby := _standby_for(job, run, fleet)) is not None:
        # The failover does not wait for the reason of the exit.
        return _take_over(job, ABSENT, standby, BeginRecovery(_cause(run, "crash"), run.failure))
    if run.restarting:
        cause = _cause(run, "restart" if run.driver_state in ("RESTARTING", "WAITING") else "crash")
        recovering = enter(JobState.RECOVERING, RECOVER_S, run.failure)
        return Decision(job=recovering, recovery=BeginRecovery(cause, run.failure))
    if job.planned_move is not None or fleet.hosts[run.host].state is not HostState.DRAINING:
        return NOTHING
    if job.relocatable and (_standby_elsewhere(job, run, fleet) or has_room(job, fleet)):
        until = now + timedelta(seconds=PREPARE_S)
        move = Moving(cause="drain", leaves=run.host, version=run.version, previous=run.version, until=until)
        return Decision(move=MoveChange(after=move))
    return stopping.stop(run, StopRequest()) if has_room(job, fleet) else NOTHING


def recovering(job: JobFacts, run: RunFacts | None, fleet: Fleet, now: datetime) -> Decision:
    """Decides for a RECOVERING job: waits until a generation after the failed one runs; places a run or promotes
    another standby if necessary.
    """
    if first := stopping.requested(job, run) or _adopt_self_promoted(job, run, fleet):
        return first
    placed = run is not None and not run.discarded
    if not placed and (waiting := _standby_for(job, run, fleet)) is not None:
        # It was not ready when the driver failed, and no host has taken the job since.
        return promote(waiting.run, stay(RECOVER_S, _cause_of_recovery(job)))
    driver = run if run is not None and not (run.discarded or run.done) else None
    standby = _standby_for(job, driver, fleet) if driver is not None else None
    # Its agent would restart the driver cold. This also replaces a promoted standby that has failed.
    if run is not None and run.exited and standby is not None:
        return replace(promote(standby.run, stay(RECOVER_S, run.failure or job.failure)), run=ABSENT)
    if driver is not None and (failover := _host_unresponsive(job, driver, fleet)):
        return failover  # the host of a promoted standby failed too
    return _until_running(job, run, fleet, now, RECOVER_S, f"Job {job.name} did not recover in time.")


# Until the driver works


def _until_running(
    job: JobFacts, run: RunFacts | None, fleet: Fleet, now: datetime, within_s: float, late: str
) -> Decision:
    """Places the job and waits until its driver works; each attempt may take `within_s`, then `late` is the failure."""
    if run is None or run.discarded:
        if job.start_error:
            return Decision(job=enter(JobState.FAILED, failure=failures.start_point_missing(job.start_error)))
        if not job.next_stored:
            return Decision(job=enter(JobState.FAILED, failure=failures.version_missing(job.name)))
        return _place(job, fleet, within_s)
    claim = _first_claim(job, run)
    if run.done:
        ended = _driver_ended(job, run, fleet)
        return replace(ended, job=replace(ended.job, first_claim=claim))
    if not fleet.alive(run.host):
        return _host_lost(job, run, fleet)
    if run.running and not run.finish_for:
        return Decision(job=replace(enter(JobState.RUNNING), first_claim=claim))
    if claim:
        return Decision(job=JobChange(first_claim=True))
    if run.running:
        return Decision(job=stay(None, job.failure)) if job.deadline is not None else NOTHING
    return _wait(job, run, now, within_s, late)


def _place(job: JobFacts, fleet: Fleet, within_s: float) -> Decision:
    """Create a run on a host, or show why there is no host."""
    placement = place(job, fleet)
    cause = _cause_of_recovery(job)
    if isinstance(placement, Placement):
        return Decision(job=stay(within_s, cause), run=RunChange(place=placement))
    failure = failures.no_host(placement)
    # The placement is retried every second; only a change is written.
    same = _same(job.failure, failure) and job.deadline is None
    return NOTHING if same else Decision(job=stay(None, failure))


def _cause_of_recovery(job: JobFacts) -> Failure | None:
    """Return the failure of a job that gets a driver now: that no host was free is over."""
    return job.failure if job.failure is not None and job.failure.error != NoHost.slug else None


def _first_claim(job: JobFacts, run: RunFacts) -> bool:
    """Whether the run has a start's first claim, which is not recorded yet."""
    changed = job.start_from or job.resolutions or job.adopt or (job.local and job.home != run.host)
    return (run.claimed or run.running) and changed


def _wait(job: JobFacts, run: RunFacts, now: datetime, within_s: float, late: str) -> Decision:
    """Wait for the driver, and give up at the deadline. There is none while the driver waits for Kafka."""
    if run.waiting:
        same = job.deadline is None and _same(run.failure, job.failure)
        return NOTHING if same else Decision(job=stay(None, run.failure))
    if job.deadline is None and job.failure is not None and job.failure.error in _OUTAGES:
        return Decision(job=stay(within_s, run.failure))  # the driver has waited: its attempt begins now
    until = due(job, run, within_s)
    until = until if job.deadline is None else max(until, job.deadline)
    if now >= until:
        return Decision(run=ABSENT, job=enter(JobState.FAILED, failure=failures.deadline_passed(late, run)))
    extended = job.deadline is None or abs((until - job.deadline).total_seconds()) > 1
    new_failure = run.failure is not None and not _same(run.failure, job.failure)
    changed = extended or new_failure
    waits = stay((until - now).total_seconds(), run.failure or job.failure)
    return Decision(job=waits) if changed else NOTHING


# Failures of the driver or its host


def _host_lost(job: JobFacts, run: RunFacts, fleet: Fleet) -> Decision:
    """Recover the job on another host."""
    recovery = _recovery_of_host(run, fleet)
    standby = _standby_for(job, run, fleet)
    return _recover(job, LOST, recovery) if standby is None else _take_over(job, LOST, standby, recovery)


def _host_unresponsive(job: JobFacts, run: RunFacts, fleet: Fleet) -> Decision:
    """Heartbeats of the driver's host are missing: a standby takes over. Without one, the lease of the host decides.

    A driver that is still alive there is fenced by the claim of the standby, and then killed.
    """
    standby = _standby_for(job, run, fleet) if fleet.unresponsive(run.host) else None
    return NOTHING if standby is None else _take_over(job, ABSENT, standby, _recovery_of_host(run, fleet))


def _driver_ended(job: JobFacts, run: RunFacts, fleet: Fleet) -> Decision:
    """Decide after the end of a driver, whose agent starts no other."""
    if run.finished:
        return Decision(job=enter(JobState.FINISHED))
    if (continued := in_doubt.decide(job, run)) is not None:
        return continued
    failure = failures.driver_ended(run)
    superseded = failure.error == Superseded.slug
    standby = _standby_for(job, run, fleet) if job.self_promotion and superseded else None
    if standby is not None:
        # One of the job's standbys claimed the log and has not reported it yet. If another one did, its claim fences
        # the promoted standby, and the next round repeats this.
        return _take_over(job, ABSENT, standby, BeginRecovery("crash", failure))
    if superseded and job.unreachable_runs:
        # a driver of this job on an unreachable host claimed the log: the job has not failed. A new run fences it.
        return _recover(job, ABSENT, BeginRecovery("host-lost", failure))
    return Decision(job=enter(JobState.FAILED, failure=in_doubt.explained(job, run, failure)))


def _adopt_self_promoted(job: JobFacts, run: RunFacts | None, fleet: Fleet) -> Decision:
    """Record the promotion of a standby that took over by itself while the control plane was unavailable."""
    standby = next((s for s in job.standbys if s.self_promoted and fleet.alive(s.host)), None)
    if standby is None or run is None or job.planned_move is not None:
        return NOTHING
    lost = not fleet.alive(run.host)
    failure = failures.host_lost(fleet.hosts.get(run.host)) if lost else run.failure
    left = LOST if lost else RunChange() if run.ended else ABSENT
    return _take_over(job, left, standby, BeginRecovery(_cause(run, "host-lost" if lost else "crash"), failure))


def _recovery_of_host(run: RunFacts, fleet: Fleet) -> BeginRecovery:
    """Return the recovery of a run whose host sends no heartbeats."""
    cause = _cause(run, "host-lost")
    shut_down = run.failure if cause == "shutdown" else None
    return BeginRecovery(cause, shut_down or failures.host_lost(fleet.hosts.get(run.host)))


def _cause(run: RunFacts, otherwise: RecoveryCause) -> RecoveryCause:
    """Return the cause of the recovery of a run: its agent may have stopped the driver."""
    # Until an attempt has ended, the failure is the previous attempt's.
    before_next = run.state in ("PENDING", "STARTING", "STOPPING", "EXITED")
    stopped = before_next and run.failure is not None and run.failure.error == StoppedWithAgent.slug
    return "shutdown" if stopped else otherwise


def _recover(job: JobFacts, left: RunChange, recovery: BeginRecovery) -> Decision:
    """RECOVERING without a run yet: the deadline begins with its placement."""
    again = job.state is JobState.RECOVERING
    recovering = JobChange() if again else enter(JobState.RECOVERING, failure=recovery.failure)
    return Decision(run=left, recovery=recovery, job=recovering)


def _take_over(job: JobFacts, left: RunChange, standby: StandbyFacts, recovery: BeginRecovery) -> Decision:
    """RECOVERING with a promoted standby: the deadline begins now."""
    again = job.state is JobState.RECOVERING
    deadline = RECOVER_S, recovery.failure
    recovering = stay(*deadline) if again else enter(JobState.RECOVERING, *deadline)
    return replace(promote(standby.run, recovering), run=left, recovery=recovery)


# Standbys


def _standby_for(job: JobFacts, run: RunFacts | None, fleet: Fleet) -> StandbyFacts | None:
    """Return the standby that can take over from a run immediately; None: there is none.

    Without a run, the job starts in its newest version. Otherwise the standby has the version of the driver, because a
    changed specification counts from the next start. A standby on another host is preferred: the host of the driver may
    be the cause of the failure.
    """
    if job.start_from or job.resolutions or job.adopt or (run is not None and (run.finish_for or run.continued)):
        return None
    ready = [
        standby
        for standby in job.standbys
        if standby.ready
        and standby.version == (job.version if run is None else run.version)
        and fleet.alive(standby.host)
        and not fleet.unresponsive(standby.host)
    ]
    host = run.host if run is not None else None
    return min(ready, key=lambda s: (s.host == host, s.state != "READY", s.run), default=None)


def _standby_elsewhere(job: JobFacts, run: RunFacts, fleet: Fleet) -> bool:
    """Whether a ready standby is on a host that does not drain."""
    return any(
        standby.ready and standby.version == run.version and fleet.hosts[standby.host].state is HostState.READY
        for standby in job.standbys
        if standby.host in fleet.hosts
    )


def _same(failure: Failure | None, other: Failure | None) -> bool:
    """Whether two failures are equal, apart from their time."""
    if failure is None or other is None:
        return failure is other
    return failure.model_copy(update={"at": None}) == other.model_copy(update={"at": None})
