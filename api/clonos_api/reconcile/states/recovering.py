"""RECOVERING: its driver fell or its host is lost; another attempt is under way, here or elsewhere."""

from __future__ import annotations

from datetime import datetime

from clonos.resources.jobs import JobState
from clonos_api.reconcile.deadlines import RECOVER_S
from clonos_api.reconcile.facts import Job, Run
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.states import failures, ways, wishes
from clonos_api.reconcile.writes import Move, Write


def decide(job: Job, run: Run | None, fleet: Fleet, now: datetime) -> list[Write]:
    """Place it if it has no host, and wait until a newer generation works."""
    wish = wishes.heed(job, run)
    if wish is not None:
        return wish
    if run is None or not run.ours:
        if job.lost_start:
            return [Move(JobState.FAILED, failure=failures.start_lost(job.lost_start))]
        return ways.placed(job, fleet, RECOVER_S)
    if run.over:
        return [*ways.settled(job, run), *ways.ended(job, run)]
    if not fleet.alive(run.agent):
        return ways.lost(job, run, fleet)
    if run.works:
        return [*ways.settled(job, run), Move(JobState.RUNNING)]
    return ways.settled(job, run) or ways.waited(job, run, now, RECOVER_S, f"Job {job.name} did not recover in time.")
