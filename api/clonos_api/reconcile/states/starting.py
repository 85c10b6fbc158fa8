"""STARTING: a run is placed; its driver has not worked yet."""

from __future__ import annotations

from datetime import datetime

from clonos_api.reconcile.deadlines import CLAIM_S
from clonos_api.reconcile.facts import Job, Run
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.states import ways
from clonos_api.reconcile.writes import Write


def decide(job: Job, run: Run | None, fleet: Fleet, now: datetime) -> list[Write]:
    """Place it, and wait for the first claim."""
    return ways.under_way(job, run, fleet, now, CLAIM_S, f"The driver of job {job.name} did not claim its log in time.")
