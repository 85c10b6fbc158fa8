"""RUNNING: see that it still does; leave a host that is drained."""

from __future__ import annotations

from datetime import datetime

from clonos.resources.hosts import HostState
from clonos.resources.jobs import JobState, StopRequest
from clonos_api.reconcile.deadlines import RECOVER_S
from clonos_api.reconcile.facts import Job, Run
from clonos_api.reconcile.placement import Fleet, Placed, place
from clonos_api.reconcile.states import ways, wishes
from clonos_api.reconcile.writes import Fall, Move, Write


def decide(job: Job, run: Run | None, fleet: Fleet, now: datetime) -> list[Write]:
    """Recover, move, or leave it alone."""
    wish = wishes.heed(job, run)
    if wish is not None:
        return wish
    if run is None or not run.ours:
        return [Move(JobState.RECOVERING, failure=job.failure)]
    if run.over:
        return ways.ended(job, run)
    if not fleet.alive(run.agent):
        return ways.lost(job, run, fleet)
    if run.fell:
        fall = Fall(run.id, "restart" if run.driver_state == "RESTARTING" else "crash", run.failure)
        return [fall, Move(JobState.RECOVERING, RECOVER_S, run.failure)]
    if _moves(job, run, fleet):
        return wishes.stop(run, StopRequest())
    return []


def _moves(job: Job, run: Run, fleet: Fleet) -> bool:
    """Whether its host is drained and another one takes it, also after all that are about to be placed."""
    host = fleet.hosts[run.agent]
    return host.state is HostState.DRAINING and fleet.free > fleet.owed and isinstance(place(job, fleet), Placed)
