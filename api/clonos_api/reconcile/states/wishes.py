"""What a wish to end does while a driver may be there: the same in all states."""

from __future__ import annotations

from clonos.resources.jobs import DesiredState, JobState, StopMode, StopRequest
from clonos_api.reconcile.deadlines import CANCEL_S, STOP_MARGIN_S
from clonos_api.reconcile.facts import Job, Run
from clonos_api.reconcile.writes import Heed, Move, Order, Write


def heed(job: Job, run: Run | None) -> list[Write] | None:
    """What is to be done because somebody wants the job to end, or to start anew; None: nobody does."""
    if job.desired is DesiredState.CANCELED:
        return cancel(run)
    if job.desired is DesiredState.STOPPED:
        return stop(run, job.stop or StopRequest())
    if job.restart:
        # Without a driver the next placement is the new start.
        return stop(run, job.stop or StopRequest()) if run is not None and run.ours else [Heed()]
    return None


def cancel(run: Run | None) -> list[Write]:
    """Kill it, for good."""
    if run is None or not run.ours or run.over:
        return [Move(JobState.CANCELED)]
    return [Order(run.id, "STOP", StopMode.FORCE), Move(JobState.CANCELLING, CANCEL_S)]


def stop(run: Run | None, request: StopRequest) -> list[Write]:
    """Have its driver end as was asked for."""
    if run is None or not run.ours:
        return [Move(JobState.STOPPED)]
    within_s = request.timeout_s + STOP_MARGIN_S
    return [Order(run.id, "STOP", request.mode, request.timeout_s), Move(JobState.STOPPING, within_s)]
