"""RECOVERING: its driver fell or its host is lost; another attempt is under way, here or elsewhere."""

from __future__ import annotations

from datetime import datetime

from clonos_api.reconcile.deadlines import RECOVER_S
from clonos_api.reconcile.facts import Job, Run
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.states import ways
from clonos_api.reconcile.writes import Write


def decide(job: Job, run: Run | None, fleet: Fleet, now: datetime) -> list[Write]:
    """Place it if it has no host, and wait until a newer generation works."""
    return ways.under_way(job, run, fleet, now, RECOVER_S, f"Job {job.name} did not recover in time.")
