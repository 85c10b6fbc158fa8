"""RECOVERING: its driver fell or its host is lost; another attempt is under way, here or elsewhere."""

from __future__ import annotations

from datetime import datetime

from clonos_api.reconcile.deadlines import RECOVER_S
from clonos_api.reconcile.facts import Job, Run
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.states import ways, wishes
from clonos_api.reconcile.writes import Order, Promote, Wait, Write


def decide(job: Job, run: Run | None, fleet: Fleet, now: datetime) -> list[Write]:
    """Place it if it has no host, and wait until a newer generation works; who falls on the way is followed too."""
    if wishes.heed(job, run) is None and (helped := ways.helped(job, run, fleet)):
        return helped
    follower = ways.standby(job, run, fleet) if run is not None and run.ours and not run.over else None
    # Its process is gone, and its agent would start it cold: also where it is a standby that was to take over.
    if run is not None and run.gone and follower is not None and wishes.heed(job, run) is None:
        return [
            Order(run.id, "GONE"),
            Promote(follower.run, follower.agent),
            Wait(RECOVER_S, run.failure or job.failure),
        ]
    return ways.under_way(job, run, fleet, now, RECOVER_S, f"Job {job.name} did not recover in time.")
