"""STOPPING and CANCELLING: the driver has to exit. Both states end in time, even if the host never responds."""

from __future__ import annotations

from datetime import datetime

from clonos.resources.jobs import DesiredState, Failure, JobState, StopMode, StopRequest
from clonos_api.reconcile.deadlines import CANCEL_S, FORCE_S, SAVEPOINT_S, STOP_MARGIN_S
from clonos_api.reconcile.decisions import (
    AcknowledgeRestart,
    CloseRun,
    Decision,
    GiveUpSavepoint,
    MarkLost,
    SetDeadline,
    TakeSavepoint,
    Transition,
    UpdateRun,
)
from clonos_api.reconcile.facts import JobFacts, RunFacts
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.states import failures

# Requests to end, in any state that may have a driver


def requested(job: JobFacts, run: RunFacts | None) -> list[Decision] | None:
    """Return the decisions for a pending stop, cancel or restart request; None: there is none."""
    if job.desired is DesiredState.CANCELED:
        return cancel(run)
    if job.desired is DesiredState.STOPPED:
        return stop(run, job.stop or StopRequest())
    if job.restart:
        # Without a driver the next placement is the new start.
        has_driver = run is not None and not run.discarded
        return stop(run, job.stop or StopRequest()) if has_driver else [AcknowledgeRestart()]
    return None


def cancel(run: RunFacts | None) -> list[Decision]:
    """Return the decisions that kill the driver of a cancelled job."""
    if run is None or run.discarded or run.done:
        return [Transition(JobState.CANCELED)]
    return [UpdateRun(run.id, "STOPPED", StopMode.FORCE), Transition(JobState.CANCELLING, CANCEL_S)]


def stop(run: RunFacts | None, request: StopRequest) -> list[Decision]:
    """Return the decisions that stop the driver in the requested mode."""
    if run is None or run.discarded:
        return [Transition(JobState.STOPPED)]
    within_s = request.timeout_s + STOP_MARGIN_S
    return [UpdateRun(run.id, "STOPPED", request.mode, request.timeout_s), Transition(JobState.STOPPING, within_s)]


# The states


def stopping(job: JobFacts, run: RunFacts | None, fleet: Fleet, now: datetime) -> list[Decision]:
    """Decides for a STOPPING job: waits until the driver has exited, takes the requested savepoint, and kills the
    driver after the deadline.
    """
    if job.desired is DesiredState.CANCELED:
        return cancel(run)
    late = job.deadline is None or now >= job.deadline
    if run is None or run.discarded:
        return _stopped(job, None)
    if run.done:
        close: list[Decision] = [] if run.ended else [CloseRun(run.id)]
        if run.finished and not job.restart:
            return [*close, Transition(JobState.FINISHED)]
        return [*close, *_driver_ended(job, run, fleet, late)]
    if not fleet.alive(run.host):
        return [MarkLost(run.id), *_stopped(job, failures.host_lost(fleet.hosts.get(run.host)))]
    force = job.stop is not None and job.stop.mode is StopMode.FORCE
    if run.stop_mode is not StopMode.FORCE and (late or force):
        return [UpdateRun(run.id, "STOPPED", StopMode.FORCE), SetDeadline(FORCE_S, job.failure)]
    if late:
        failure = failures.deadline_passed(f"The driver of job {job.name} did not end.", run)
        return [UpdateRun(run.id, "ABSENT"), *_stopped(job, failure)]
    return []


def cancelling(job: JobFacts, run: RunFacts | None, fleet: Fleet, now: datetime) -> list[Decision]:
    """Decides for a CANCELLING job: waits until the run has ended, at most until the deadline."""
    if run is None or run.discarded:
        return [Transition(JobState.CANCELED)]
    if run.done:
        return [*([] if run.ended else [CloseRun(run.id)]), Transition(JobState.CANCELED)]
    if not fleet.alive(run.host):
        return [MarkLost(run.id), Transition(JobState.CANCELED)]
    if job.deadline is None or now >= job.deadline:
        return [UpdateRun(run.id, "ABSENT"), Transition(JobState.CANCELED)]
    return []


def _driver_ended(job: JobFacts, run: RunFacts, fleet: Fleet, late: bool) -> list[Decision]:
    """Take the savepoint, if requested, of a stop whose driver has ended."""
    savepoint = job.stop is not None and job.stop.mode is StopMode.CHECKPOINT
    if not savepoint or run.exit_code != 0 or job.savepoint in ("COMPLETED", "FAILED"):
        return _stopped(job, run.failure)
    if not fleet.alive(run.host):
        give_up: list[Decision] = [GiveUpSavepoint()] if job.savepoint else []
        return [*give_up, *_stopped(job, failures.host_lost(fleet.hosts.get(run.host)))]
    if job.savepoint is None:
        return [TakeSavepoint(run.host), SetDeadline(SAVEPOINT_S, job.failure)]
    return [GiveUpSavepoint(), *_stopped(job, None)] if late else []


def _stopped(job: JobFacts, failure: Failure | None) -> list[Decision]:
    if job.desired is DesiredState.RUNNING:
        return [Transition(JobState.STARTING)]
    return [Transition(JobState.STOPPED, failure=failure)]
