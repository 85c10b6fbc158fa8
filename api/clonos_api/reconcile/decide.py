"""Decides what to do about a job and its driver: a pure function without I/O and without a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from clonos.resources.jobs import JobState
from clonos_api.reconcile.decisions import Decision
from clonos_api.reconcile.facts import JobFacts, RunFacts
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.states import active, inactive, moving, stopping

Decide = Callable[[JobFacts, RunFacts | None, Fleet, datetime], list[Decision]]

BY_STATE: Final[Mapping[JobState, Decide]] = {
    JobState.CREATED: inactive.decide,
    JobState.STARTING: active.starting,
    JobState.RUNNING: active.running,
    JobState.RECOVERING: active.recovering,
    JobState.STOPPING: stopping.stopping,
    JobState.STOPPED: inactive.decide,
    JobState.CANCELLING: stopping.cancelling,
    JobState.CANCELED: inactive.decide,
    JobState.FAILED: inactive.decide,
    JobState.FINISHED: inactive.decide,
}


def decide(job: JobFacts, run: RunFacts | None, fleet: Fleet, now: datetime) -> list[Decision]:
    """Return the decisions to write now, in one transaction; none if the job waits or is settled.

    `run` is the newest run since the job's last start, `now` the database's time.
    """
    move = moving.decide(job, run, fleet, now)
    return move if move is not None else BY_STATE[job.state](job, run, fleet, now)
