"""STARTING, RUNNING, RECOVERING: the job needs a driver that works.

STARTING and RECOVERING place a run and wait until its driver works, or give up at the deadline. RUNNING watches the
driver. In all three a ready standby takes over from a driver that has failed.
"""

from __future__ import annotations

from datetime import datetime

from clonos.errors import (
    BrokerUnavailable,
    CheckpointUnavailable,
    NoHost,
    RegistryUnavailable,
    StoppedWithAgent,
    Superseded,
)
from clonos.resources.hosts import HostState
from clonos.resources.jobs import Failure, JobState, StopRequest
from clonos_api.reconcile.deadlines import CLAIM_S, PREPARE_S, RECOVER_S, due
from clonos_api.reconcile.decisions import (
    BeginMove,
    BeginRecovery,
    Decision,
    MarkLost,
    PlaceRun,
    PromoteStandby,
    RecordFirstClaim,
    RecoveryCause,
    SetDeadline,
    Transition,
    UpdateRun,
)
from clonos_api.reconcile.facts import JobFacts, RunFacts, StandbyFacts
from clonos_api.reconcile.placement import Fleet, Placement, has_room, place
from clonos_api.reconcile.states import failures, in_doubt, stopping

# Failures of a job whose driver waits.
_OUTAGES = frozenset({BrokerUnavailable.slug, CheckpointUnavailable.slug, RegistryUnavailable.slug})

# The states


def starting(job: JobFacts, run: RunFacts | None, fleet: Fleet, now: datetime) -> list[Decision]:
    """Decides for a STARTING job: places a run and waits for its first claim."""
    late = f"The driver of job {job.name} did not claim its log in time."
    return _until_running(job, run, fleet, now, CLAIM_S, late)


def running(job: JobFacts, run: RunFacts | None, fleet: Fleet, now: datetime) -> list[Decision]:
    """Decides for a RUNNING job: recovers it after a failure of the driver, moves it off a draining host, or does
    nothing.
    """
    if (request := stopping.requested(job, run)) is not None:
        return request
    if adopted := _adopt_self_promoted(job, run, fleet):
        return adopted
    if run is None or run.discarded:
        return [Transition(JobState.RECOVERING, failure=job.failure)]
    if run.done:
        return _driver_ended(job, run, fleet)
    if not fleet.alive(run.host):
        return _host_lost(job, run, fleet)
    if failover := _host_unresponsive(job, run, fleet):
        return failover
    if run.exited and (standby := _standby_for(job, run, fleet)) is not None:
        # The failover does not wait for the reason of the exit.
        return [UpdateRun(run.id, "ABSENT"), *_take_over(job, run, standby, _cause(run, "crash"), run.failure)]
    if run.restarting:
        cause = _cause(run, "restart" if run.driver_state in ("RESTARTING", "WAITING") else "crash")
        return [BeginRecovery(run.id, cause, run.failure), Transition(JobState.RECOVERING, RECOVER_S, run.failure)]
    if job.planned_move is not None or fleet.hosts[run.host].state is not HostState.DRAINING:
        return []
    if job.relocatable and (_standby_elsewhere(job, run, fleet) or has_room(job, fleet)):
        return [BeginMove(PREPARE_S)]
    return stopping.stop(run, StopRequest()) if has_room(job, fleet) else []


def recovering(job: JobFacts, run: RunFacts | None, fleet: Fleet, now: datetime) -> list[Decision]:
    """Decides for a RECOVERING job: waits until a generation after the failed one runs; places a run or promotes
    another standby if necessary.
    """
    request = stopping.requested(job, run)
    if request is None and (adopted := _adopt_self_promoted(job, run, fleet)):
        return adopted
    placed = run is not None and not run.discarded
    if not placed and request is None and (waiting := _standby_for(job, run, fleet)) is not None:
        # It was not ready when the driver failed, and no host has taken the job since.
        return [PromoteStandby(waiting.run, waiting.host), SetDeadline(RECOVER_S, _cause_of_recovery(job))]
    driver = run if run is not None and not (run.discarded or run.done) else None
    standby = _standby_for(job, driver, fleet) if driver is not None else None
    # Its agent would restart the driver cold. This also replaces a promoted standby that has failed.
    if run is not None and run.exited and standby is not None and request is None:
        return [
            UpdateRun(run.id, "ABSENT"),
            PromoteStandby(standby.run, standby.host),
            SetDeadline(RECOVER_S, run.failure or job.failure),
        ]
    if driver is not None and request is None and (failover := _host_unresponsive(job, driver, fleet)):
        return failover  # the host of a promoted standby failed too
    return _until_running(job, run, fleet, now, RECOVER_S, f"Job {job.name} did not recover in time.")


# Until the driver works


def _until_running(
    job: JobFacts, run: RunFacts | None, fleet: Fleet, now: datetime, within_s: float, late: str
) -> list[Decision]:
    """Places the job and waits until its driver works; each attempt may take `within_s`, then `late` is the failure."""
    if (request := stopping.requested(job, run)) is not None:
        return request
    if run is None or run.discarded:
        if job.start_error:
            return [Transition(JobState.FAILED, failure=failures.start_point_missing(job.start_error))]
        if not job.next_stored:
            return [Transition(JobState.FAILED, failure=failures.version_missing(job.name))]
        return _place(job, fleet, within_s)
    claim = _first_claim(job, run)
    if run.done:
        return [*claim, *_driver_ended(job, run, fleet)]
    if not fleet.alive(run.host):
        return _host_lost(job, run, fleet)
    if run.running and run.finish_for:
        return claim or ([SetDeadline(None, job.failure)] if job.deadline is not None else [])
    if run.running:
        return [*claim, Transition(JobState.RUNNING)]
    return claim or _wait(job, run, now, within_s, late)


def _place(job: JobFacts, fleet: Fleet, within_s: float) -> list[Decision]:
    """Create a run on a host, or show why there is no host."""
    placement = place(job, fleet)
    cause = _cause_of_recovery(job)
    if isinstance(placement, Placement):
        return [PlaceRun(placement.host, placement.why), SetDeadline(within_s, cause)]
    failure = failures.no_host(placement)
    # The placement is retried every second; only a change is written.
    return [] if _same(job.failure, failure) and job.deadline is None else [SetDeadline(None, failure)]


def _cause_of_recovery(job: JobFacts) -> Failure | None:
    """Return the failure of a job that gets a driver now: that no host was free is over."""
    return job.failure if job.failure is not None and job.failure.error != NoHost.slug else None


def _first_claim(job: JobFacts, run: RunFacts) -> list[Decision]:
    """Record the changes of a start's first claim."""
    changed = job.start_from or job.resolutions or job.adopt or (job.local and job.home != run.host)
    return [RecordFirstClaim(run.host)] if (run.claimed or run.running) and changed else []


def _wait(job: JobFacts, run: RunFacts, now: datetime, within_s: float, late: str) -> list[Decision]:
    """Wait for the driver, and give up at the deadline. There is none while the driver waits for Kafka."""
    if run.waiting:
        return [] if job.deadline is None and _same(run.failure, job.failure) else [SetDeadline(None, run.failure)]
    if job.deadline is None and job.failure is not None and job.failure.error in _OUTAGES:
        return [SetDeadline(within_s, run.failure)]  # the driver has waited: its attempt begins now
    until = due(job, run, within_s)
    until = until if job.deadline is None else max(until, job.deadline)
    if now >= until:
        return [UpdateRun(run.id, "ABSENT"), Transition(JobState.FAILED, failure=failures.deadline_passed(late, run))]
    extended = job.deadline is None or abs((until - job.deadline).total_seconds()) > 1
    new_failure = run.failure is not None and not _same(run.failure, job.failure)
    changed = extended or new_failure
    return [SetDeadline((until - now).total_seconds(), run.failure or job.failure)] if changed else []


# Failures of the driver or its host


def _host_lost(job: JobFacts, run: RunFacts, fleet: Fleet) -> list[Decision]:
    """Return the job recovers on another host."""
    failure, cause = _failure_of_host(run, fleet)
    standby = _standby_for(job, run, fleet)
    if standby is None:
        return [MarkLost(run.id), BeginRecovery(run.id, cause, failure), *_recover(job, failure)]
    return [MarkLost(run.id), *_take_over(job, run, standby, cause, failure)]


def _host_unresponsive(job: JobFacts, run: RunFacts, fleet: Fleet) -> list[Decision]:
    """Heartbeats of the driver's host are missing: a standby takes over. Without one, the lease of the host decides.

    A driver that is still alive there is fenced by the claim of the standby, and then killed.
    """
    standby = _standby_for(job, run, fleet) if fleet.unresponsive(run.host) else None
    if standby is None:
        return []
    failure, cause = _failure_of_host(run, fleet)
    return [UpdateRun(run.id, "ABSENT"), *_take_over(job, run, standby, cause, failure)]


def _driver_ended(job: JobFacts, run: RunFacts, fleet: Fleet) -> list[Decision]:
    """Return the driver ended, and its agent starts no other."""
    if run.finished:
        return [Transition(JobState.FINISHED)]
    if (continued := in_doubt.decide(job, run)) is not None:
        return continued
    failure = failures.driver_ended(run)
    superseded = failure.error == Superseded.slug
    standby = _standby_for(job, run, fleet) if job.self_promotion and superseded else None
    if standby is not None:
        # One of the job's standbys claimed the log and has not reported it yet. If another one did, its claim fences
        # the promoted standby, and the next round repeats this.
        return [UpdateRun(run.id, "ABSENT"), *_take_over(job, run, standby, "crash", failure)]
    if superseded and job.unreachable_runs:
        # a driver of this job on an unreachable host claimed the log: the job has not failed. A new run fences it.
        recover = _recover(job, failure)
        return [UpdateRun(run.id, "ABSENT"), BeginRecovery(run.id, "host-lost", failure), *recover]
    return [Transition(JobState.FAILED, failure=in_doubt.explained(job, run, failure))]


def _adopt_self_promoted(job: JobFacts, run: RunFacts | None, fleet: Fleet) -> list[Decision]:
    """Record the promotion of a standby that took over by itself while the control plane was unavailable."""
    standby = next((s for s in job.standbys if s.self_promoted and fleet.alive(s.host)), None)
    if standby is None or run is None or job.planned_move is not None:
        return []
    lost = not fleet.alive(run.host)
    failure = failures.host_lost(fleet.hosts.get(run.host)) if lost else run.failure
    left: list[Decision] = [MarkLost(run.id)] if lost else [] if run.ended else [UpdateRun(run.id, "ABSENT")]
    return [*left, *_take_over(job, run, standby, _cause(run, "host-lost" if lost else "crash"), failure)]


def _failure_of_host(run: RunFacts, fleet: Fleet) -> tuple[Failure, RecoveryCause]:
    """Return the failure and the cause of the recovery of a run whose host sends no heartbeats."""
    cause = _cause(run, "host-lost")
    if cause == "shutdown" and run.failure is not None:
        return run.failure, cause
    return failures.host_lost(fleet.hosts.get(run.host)), cause


def _cause(run: RunFacts, otherwise: RecoveryCause) -> RecoveryCause:
    """Return the cause of the recovery of a run: its agent may have stopped the driver."""
    # Until an attempt has ended, the failure is the previous attempt's.
    before_next = run.state in ("PENDING", "STARTING", "STOPPING", "EXITED")
    stopped = before_next and run.failure is not None and run.failure.error == StoppedWithAgent.slug
    return "shutdown" if stopped else otherwise


def _recover(job: JobFacts, failure: Failure) -> list[Decision]:
    """RECOVERING without a run yet: the deadline begins with its placement."""
    return [] if job.state is JobState.RECOVERING else [Transition(JobState.RECOVERING, failure=failure)]


def _take_over(
    job: JobFacts,
    run: RunFacts,
    standby: StandbyFacts,
    cause: RecoveryCause,
    failure: Failure | None,
) -> list[Decision]:
    """RECOVERING with a promoted standby: the deadline begins now."""
    again = job.state is JobState.RECOVERING
    return [
        BeginRecovery(run.id, cause, failure),
        PromoteStandby(standby.run, standby.host),
        SetDeadline(RECOVER_S, failure) if again else Transition(JobState.RECOVERING, RECOVER_S, failure),
    ]


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
