"""STOPPING and CANCELLING: the driver has to exit. Both states end in time, even if the host never responds."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from clonos.resources.jobs import DesiredState, Failure, JobState, StopMode, StopRequest
from clonos_api.reconcile.deadlines import CANCEL_S, FORCE_S, SAVEPOINT_S, STOP_MARGIN_S
from clonos_api.reconcile.decisions import ABSENT, LOST, NOTHING, Decision, JobChange, RunChange, enter, stay
from clonos_api.reconcile.facts import JobFacts, RunFacts
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.states import failures

_FORCE: Final = RunChange(desired="STOPPED", mode=StopMode.FORCE)

# Requests to end, in any state that may have a driver


def requested(job: JobFacts, run: RunFacts | None) -> Decision | None:
    """Return the decision about a pending stop, cancel or restart request; None: there is none."""
    if job.desired is DesiredState.CANCELED:
        return cancel(run)
    if job.desired is DesiredState.STOPPED:
        return stop(run, job.stop or StopRequest())
    if job.restart:
        # Without a driver the next placement is the new start.
        has_driver = run is not None and not run.discarded
        acknowledged = Decision(job=JobChange(restart_acknowledged=True))
        return stop(run, job.stop or StopRequest()) if has_driver else acknowledged
    return None


def cancel(run: RunFacts | None) -> Decision:
    """Return the decision that kills the driver of a cancelled job."""
    if run is None or run.discarded or run.done:
        return Decision(job=enter(JobState.CANCELED))
    return Decision(run=_FORCE, job=enter(JobState.CANCELLING, CANCEL_S))


def stop(run: RunFacts | None, request: StopRequest) -> Decision:
    """Return the decision that stops the driver in the requested mode."""
    if run is None or run.discarded:
        return Decision(job=enter(JobState.STOPPED))
    stopped = RunChange(desired="STOPPED", mode=request.mode, timeout_s=request.timeout_s)
    return Decision(run=stopped, job=enter(JobState.STOPPING, request.timeout_s + STOP_MARGIN_S))


# The states


def stopping(job: JobFacts, run: RunFacts | None, fleet: Fleet, now: datetime) -> Decision:
    """Decides for a STOPPING job: waits until the driver has exited, takes the requested savepoint, and kills the
    driver after the deadline.
    """
    if job.desired is DesiredState.CANCELED:
        return cancel(run)
    late = job.deadline is None or now >= job.deadline
    if run is None or run.discarded:
        return Decision(job=_stopped(job, None))
    if run.done:
        finished = run.finished and not job.restart
        ended = enter(JobState.FINISHED) if finished else _driver_ended(job, run, fleet, late)
        return Decision(run=_closed(run), job=ended)
    if not fleet.alive(run.host):
        return Decision(run=LOST, job=_stopped(job, failures.host_lost(fleet.hosts.get(run.host))))
    force = job.stop is not None and job.stop.mode is StopMode.FORCE
    if run.stop_mode is not StopMode.FORCE and (late or force):
        return Decision(run=_FORCE, job=stay(FORCE_S, job.failure))
    if late:
        failure = failures.deadline_passed(f"The driver of job {job.name} did not end.", run)
        return Decision(run=ABSENT, job=_stopped(job, failure))
    return NOTHING


def cancelling(job: JobFacts, run: RunFacts | None, fleet: Fleet, now: datetime) -> Decision:
    """Decides for a CANCELLING job: waits until the run has ended, at most until the deadline."""
    canceled = Decision(job=enter(JobState.CANCELED))
    if run is None or run.discarded:
        return canceled
    if run.done:
        return replace(canceled, run=_closed(run))
    if not fleet.alive(run.host):
        return replace(canceled, run=LOST)
    late = job.deadline is None or now >= job.deadline
    return replace(canceled, run=ABSENT) if late else NOTHING


def _closed(run: RunFacts) -> RunChange:
    return RunChange(closed=not run.ended)


def _driver_ended(job: JobFacts, run: RunFacts, fleet: Fleet, late: bool) -> JobChange:
    """Take the savepoint, if requested, of a stop whose driver has ended."""
    savepoint = job.stop is not None and job.stop.mode is StopMode.CHECKPOINT
    if not savepoint or run.exit_code != 0 or job.savepoint in ("COMPLETED", "FAILED"):
        return _stopped(job, run.failure)
    if not fleet.alive(run.host):
        stopped = _stopped(job, failures.host_lost(fleet.hosts.get(run.host)))
        return replace(stopped, savepoint="give-up") if job.savepoint else stopped
    if job.savepoint is None:
        return replace(stay(SAVEPOINT_S, job.failure), savepoint="take")
    return replace(_stopped(job, None), savepoint="give-up") if late else JobChange()


def _stopped(job: JobFacts, failure: Failure | None) -> JobChange:
    if job.desired is DesiredState.RUNNING:
        return enter(JobState.STARTING)
    return enter(JobState.STOPPED, failure=failure)
