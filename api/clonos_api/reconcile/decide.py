"""Decides what to do about a job and its driver: a pure function without I/O and without a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from clonos.resources.jobs import DesiredState, JobState
from clonos_api.reconcile.decisions import NOTHING, Decision, enter
from clonos_api.reconcile.facts import JobFacts, RunFacts
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.states import active, moving, stopping
from clonos_api.reconcile.transitions import allowed

Decide = Callable[[JobFacts, RunFacts | None, Fleet, datetime], Decision]


def inactive(job: JobFacts, run: RunFacts | None, fleet: Fleet, now: datetime) -> Decision:
    """Decides for a job without a driver, which only a request changes: starts it, or changes to the desired state.

    The table of transitions has to allow that: CANCELED is final.
    """
    to = {
        DesiredState.RUNNING: JobState.STARTING,
        DesiredState.STOPPED: JobState.STOPPED,
        DesiredState.CANCELED: JobState.CANCELED,
    }[job.desired]
    if not allowed(job.state, to, job.intent):
        return NOTHING
    return Decision(job=enter(to, failure=job.failure if to is JobState.STOPPED else None))


BY_STATE: Final[Mapping[JobState, Decide]] = {
    JobState.CREATED: inactive,
    JobState.STARTING: active.starting,
    JobState.RUNNING: active.running,
    JobState.RECOVERING: active.recovering,
    JobState.STOPPING: stopping.stopping,
    JobState.STOPPED: inactive,
    JobState.CANCELLING: stopping.cancelling,
    JobState.CANCELED: inactive,
    JobState.FAILED: inactive,
    JobState.FINISHED: inactive,
}


def decide(job: JobFacts, run: RunFacts | None, fleet: Fleet, now: datetime) -> Decision:
    """Return the decision to write now, in one transaction; it is false if the job waits or is settled.

    `run` is the newest run since the job's last start, `now` the database's time.
    """
    move = moving.decide(job, run, fleet, now)
    return move if move is not None else BY_STATE[job.state](job, run, fleet, now)
