"""STOPPING: its driver is ending; it always does in time."""

from __future__ import annotations

from datetime import datetime

from clonos.resources.jobs import DesiredState, Failure, JobState, StopMode
from clonos_api.reconcile.deadlines import FORCE_S, SAVEPOINT_S
from clonos_api.reconcile.facts import Job, Run
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.states import failures, wishes
from clonos_api.reconcile.writes import Close, GiveUpSave, Lose, Move, Order, Save, Wait, Write


def decide(job: Job, run: Run | None, fleet: Fleet, now: datetime) -> list[Write]:
    """Wait for the run's end, then copy the checkpoint if that was asked for; force it when its time is over."""
    if job.desired is DesiredState.CANCELED:
        return wishes.cancel(run)
    late = job.deadline is None or now >= job.deadline
    if run is None or not run.ours:
        return _done(job, None)
    if run.over:
        close: list[Write] = [] if run.ended else [Close(run.id)]
        if run.finished and not job.restart:
            return [*close, Move(JobState.FINISHED)]
        return [*close, *_saved(job, run, fleet, late)]
    if not fleet.alive(run.agent):
        return [Lose(run.id), *_done(job, failures.host_lost(fleet.hosts.get(run.agent)))]
    forced = run.stop_mode is StopMode.FORCE
    if not forced and (late or _wants_force(job)):
        return [Order(run.id, "STOP", StopMode.FORCE), Wait(FORCE_S, job.failure)]
    if late:
        return [
            Order(run.id, "GONE"),
            *_done(job, failures.too_late(f"The driver of job {job.name} did not end.", run)),
        ]
    return []


def _wants_force(job: Job) -> bool:
    return job.stop is not None and job.stop.mode is StopMode.FORCE


def _saved(job: Job, run: Run, fleet: Fleet, late: bool) -> list[Write]:
    """The rest of a stop whose driver has ended."""
    wanted = job.stop is not None and job.stop.mode is StopMode.CHECKPOINT
    if not wanted or run.exit_code != 0 or job.savepoint in ("COMPLETED", "FAILED"):
        return _done(job, run.failure)
    if not fleet.alive(run.agent):
        give_up: list[Write] = [GiveUpSave()] if job.savepoint else []
        return [*give_up, *_done(job, failures.host_lost(fleet.hosts.get(run.agent)))]
    if job.savepoint is None:
        return [Save(run.agent), Wait(SAVEPOINT_S, job.failure)]
    return [GiveUpSave(), *_done(job, None)] if late else []


def _done(job: Job, failure: Failure | None) -> list[Write]:
    if job.desired is DesiredState.RUNNING:
        return [Move(JobState.STARTING, fresh=True)]
    return [Move(JobState.STOPPED, failure=failure)]
