"""CREATED, STOPPED, FAILED, FINISHED, CANCELED: nothing runs; only a wish leads out, and nothing out of CANCELED."""

from __future__ import annotations

from datetime import datetime

from clonos.resources.jobs import DesiredState, JobState
from clonos_api.reconcile.facts import Job, Run
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.transitions import allowed
from clonos_api.reconcile.writes import Move, Write


def decide(job: Job, run: Run | None, fleet: Fleet, now: datetime) -> list[Write]:
    """Start, or call it what it was asked to be, as far as the table allows."""
    to = {
        DesiredState.RUNNING: JobState.STARTING,
        DesiredState.STOPPED: JobState.STOPPED,
        DesiredState.CANCELED: JobState.CANCELED,
    }[job.desired]
    if not allowed(job.state, to, job.asked):
        return []
    return [Move(to, fresh=to is JobState.STARTING, failure=job.failure if to is JobState.STOPPED else None)]
