"""CREATED, STOPPED, FAILED, FINISHED, CANCELED: no driver. Only a request leaves these states; CANCELED is final."""

from __future__ import annotations

from datetime import datetime

from clonos.resources.jobs import DesiredState, JobState
from clonos_api.reconcile.decisions import Decision, Transition
from clonos_api.reconcile.facts import JobFacts, RunFacts
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.transitions import allowed


def decide(job: JobFacts, run: RunFacts | None, fleet: Fleet, now: datetime) -> list[Decision]:
    """Decides for a job without a driver: starts it, or changes to the desired state, if the table of transitions
    allows that.
    """
    to = {
        DesiredState.RUNNING: JobState.STARTING,
        DesiredState.STOPPED: JobState.STOPPED,
        DesiredState.CANCELED: JobState.CANCELED,
    }[job.desired]
    if not allowed(job.state, to, job.intent):
        return []
    return [Transition(to, failure=job.failure if to is JobState.STOPPED else None)]
