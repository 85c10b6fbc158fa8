"""CANCELLING: its driver is being killed; it is cancelled in time whatever its host says."""

from __future__ import annotations

from datetime import datetime

from clonos.resources.jobs import JobState
from clonos_api.reconcile.facts import Job, Run
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.writes import Close, Lose, Move, Order, Write


def decide(job: Job, run: Run | None, fleet: Fleet, now: datetime) -> list[Write]:
    """Wait for the run's end."""
    if run is None or not run.ours:
        return [Move(JobState.CANCELED)]
    if run.over:
        return [*([] if run.ended else [Close(run.id)]), Move(JobState.CANCELED)]
    if not fleet.alive(run.agent):
        return [Lose(run.id), Move(JobState.CANCELED)]
    if job.deadline is None or now >= job.deadline:
        return [Order(run.id, "GONE"), Move(JobState.CANCELED)]
    return []
