"""From what is and what was asked for to what is to be written. No input, no output, no clock: `now` is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from clonos.resources.jobs import JobState
from clonos_api.reconcile.facts import Job, Run
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.states import cancelling, moving, recovering, resting, running, starting, stopping
from clonos_api.reconcile.writes import Write

Decide = Callable[[Job, Run | None, Fleet, datetime], list[Write]]

BY_STATE: Final[Mapping[JobState, Decide]] = {
    JobState.CREATED: resting.decide,
    JobState.STARTING: starting.decide,
    JobState.RUNNING: running.decide,
    JobState.RECOVERING: recovering.decide,
    JobState.STOPPING: stopping.decide,
    JobState.STOPPED: resting.decide,
    JobState.CANCELLING: cancelling.decide,
    JobState.CANCELED: resting.decide,
    JobState.FAILED: resting.decide,
    JobState.FINISHED: resting.decide,
}


def decide(job: Job, run: Run | None, fleet: Fleet, now: datetime) -> list[Write]:
    """What is to be written now, as one transaction; nothing if the job waits or rests.

    Args:
        job: The job.
        run: Its newest run since it was started.
        fleet: All hosts.
        now: By the database's clock.
    """
    planned = moving.decide(job, run, fleet, now)
    return planned if planned is not None else BY_STATE[job.state](job, run, fleet, now)
