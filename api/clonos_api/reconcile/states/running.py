"""RUNNING: see that it still does; leave a host that is drained."""

from __future__ import annotations

from datetime import datetime

from clonos.resources.hosts import HostState
from clonos.resources.jobs import JobState, StopRequest
from clonos_api.reconcile.deadlines import PREPARE_S, RECOVER_S
from clonos_api.reconcile.facts import Job, Run
from clonos_api.reconcile.placement import Fleet, Placed, place
from clonos_api.reconcile.states import ways, wishes
from clonos_api.reconcile.writes import BeginMove, Fall, Move, Order, Promote, Write


def decide(job: Job, run: Run | None, fleet: Fleet, now: datetime) -> list[Write]:
    """Recover, move, or leave it alone."""
    wish = wishes.heed(job, run)
    if wish is not None:
        return wish
    if helped := ways.helped(job, run, fleet):
        return helped
    if run is None or not run.ours:
        return [Move(JobState.RECOVERING, failure=job.failure)]
    if run.over:
        return ways.ended(job, run, fleet)
    if not fleet.alive(run.agent):
        return ways.lost(job, run, fleet)
    if silent := ways.silent(job, run, fleet):
        return silent
    if run.gone and (standby := ways.standby(job, run, fleet)) is not None:
        # At once: nobody has to know why its driver ended.
        fallen: list[Write] = [Order(run.id, "GONE"), Fall(run.id, "crash", run.failure)]
        return [*fallen, Promote(standby.run, standby.agent), Move(JobState.RECOVERING, RECOVER_S, run.failure)]
    if run.fell:
        fall = Fall(run.id, "restart" if run.driver_state == "RESTARTING" else "crash", run.failure)
        return [fall, Move(JobState.RECOVERING, RECOVER_S, run.failure)]
    if job.moving is not None or fleet.hosts[run.agent].state is not HostState.DRAINING:
        return []
    if job.warm and (_ready(job, run, fleet) or leaves(job, fleet)):
        return [BeginMove(PREPARE_S)]
    return wishes.stop(run, StopRequest()) if leaves(job, fleet) else []


def _ready(job: Job, run: Run, fleet: Fleet) -> bool:
    return any(
        one.ready and one.version == run.version and fleet.hosts[one.agent].state is HostState.READY
        for one in job.standbys
        if one.agent in fleet.hosts
    )


def leaves(job: Job, fleet: Fleet) -> bool:
    """Whether another host takes a job whose own is drained, also after all that are about to be placed."""
    return fleet.free > fleet.owed and isinstance(place(job, fleet), Placed)
