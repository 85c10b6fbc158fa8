"""Steps that several states share: a run is placed, lost, ended, or given up."""

from __future__ import annotations

from datetime import datetime

from clonos.resources.jobs import Failure, JobState
from clonos_api.reconcile.deadlines import RECOVER_S, due
from clonos_api.reconcile.facts import Job, Run, Waiting
from clonos_api.reconcile.placement import Fleet, Placed, place
from clonos_api.reconcile.states import failures, wishes
from clonos_api.reconcile.writes import Fall, Lose, Move, Order, Place, Promote, Settle, Wait, Write


def under_way(job: Job, run: Run | None, fleet: Fleet, now: datetime, within_s: float, late: str) -> list[Write]:
    """A job is to run and does not yet: place it, and wait until its driver works.

    Args:
        job: The job.
        run: Its newest run.
        fleet: All hosts.
        now: By the database's clock.
        within_s: How long an attempt may take.
        late: What to say if it takes longer.
    """
    wish = wishes.heed(job, run)
    if wish is not None:
        return wish
    if run is None or not run.ours:
        if job.lost_start:
            return [Move(JobState.FAILED, failure=failures.start_lost(job.lost_start))]
        return placed(job, fleet, within_s)
    if run.over:
        return [*settled(job, run), *ended(job, run, fleet)]
    if not fleet.alive(run.agent):
        return lost(job, run, fleet)
    if run.works:
        return [*settled(job, run), Move(JobState.RUNNING)]
    return settled(job, run) or waited(job, run, now, within_s, late)


def placed(job: Job, fleet: Fleet, within_s: float) -> list[Write]:
    """A host for a job without a driver; or what holds it up."""
    found = place(job, fleet)
    cause = job.failure if job.failure and job.failure.error != failures.NO_HOST else None
    if isinstance(found, Placed):
        return [Place(found.agent, found.why), Wait(within_s, cause)]
    failure = failures.no_host(found)
    # It is tried each second; only news are written.
    return [] if same(job.failure, failure) and job.deadline is None else [Wait(None, failure)]


def lost(job: Job, run: Run, fleet: Fleet) -> list[Write]:
    """The host of its driver is lost: it recovers elsewhere."""
    failure = failures.host_lost(fleet.hosts.get(run.agent))
    moved: list[Write] = [] if job.state is JobState.RECOVERING else [Move(JobState.RECOVERING, failure=failure)]
    found = standby(job, run, fleet)
    if found is None:
        return [Lose(run.id), Fall(run.id, "host-lost", failure), *moved]
    return [
        Lose(run.id),
        Fall(run.id, "host-lost", failure),
        Promote(found.run, found.agent),
        _in_time(job, failure),
    ]


def _in_time(job: Job, failure: Failure | None) -> Write:
    """Its deadline begins now: a run is placed already."""
    if job.state is JobState.RECOVERING:
        return Wait(RECOVER_S, failure)
    return Move(JobState.RECOVERING, RECOVER_S, failure)


def helped(job: Job, run: Run | None, fleet: Fleet) -> list[Write]:
    """A standby took over by itself while nobody was there to tell it to: what it has done is written down."""
    found = next((one for one in job.standbys if one.drives and fleet.alive(one.agent)), None)
    if found is None or run is None or job.moving is not None:
        return []
    lost = not fleet.alive(run.agent)
    failure = failures.host_lost(fleet.hosts.get(run.agent)) if lost else run.failure
    left: list[Write] = [Lose(run.id)] if lost else [] if run.ended else [Order(run.id, "GONE")]
    fallen = [*left, Fall(run.id, "host-lost" if lost else "crash", failure)]
    return [*fallen, Promote(found.run, found.agent), _in_time(job, failure)]


def silent(job: Job, run: Run, fleet: Fleet) -> list[Write]:
    """Heartbeats of its driver's host are missing: a standby goes on, if there is one; else that host has its time.

    If it lives after all, its driver is fenced by the standby's claim, and then killed.
    """
    found = standby(job, run, fleet) if fleet.silent(run.agent) else None
    if found is None:
        return []
    failure = failures.host_lost(fleet.hosts.get(run.agent))
    fallen: list[Write] = [Order(run.id, "GONE"), Fall(run.id, "host-lost", failure)]
    return [*fallen, Promote(found.run, found.agent), Move(JobState.RECOVERING, RECOVER_S, failure)]


def standby(job: Job, run: Run, fleet: Fleet) -> Waiting | None:
    """The standby that takes over from a run; None: there is none that would at once.

    One of the driver's own version: what somebody changed counts from the next start. One on another host before one
    beside the driver, whose host may be the trouble.
    """
    if job.start_from:
        return None
    ready = [
        one
        for one in job.standbys
        if one.ready and one.version == run.version and fleet.alive(one.agent) and not fleet.silent(one.agent)
    ]
    return min(ready, key=lambda one: (one.agent == run.agent, one.state != "READY", one.run), default=None)


def ended(job: Job, run: Run, fleet: Fleet) -> list[Write]:
    """Its driver ended, and its agent starts no other."""
    if run.finished:
        return [Move(JobState.FINISHED)]
    failure = failures.ended(run)
    found = standby(job, run, fleet) if job.alone and failure.error == failures.SUPERSEDED else None
    if found is not None:
        # By one of its standbys, which has not told it yet; if it was another one, that is superseded in its turn.
        return [
            Order(run.id, "GONE"),
            Fall(run.id, "crash", failure),
            Promote(found.run, found.agent),
            _in_time(job, failure),
        ]
    if failure.error == failures.SUPERSEDED and job.ghosts:
        # By a driver of our own, on a host that was lost: nothing is wrong with the job. A new run fences that one.
        again: list[Write] = [] if job.state is JobState.RECOVERING else [Move(JobState.RECOVERING, failure=failure)]
        return [Order(run.id, "GONE"), Fall(run.id, "host-lost", failure), *again]
    return [Move(JobState.FAILED, failure=failure)]


def settled(job: Job, run: Run) -> list[Write]:
    """What the first claim of a start changes."""
    moved = job.local and job.home != run.agent
    return [Settle(run.agent)] if (run.claimed or run.works) and (job.start_from or moved) else []


def waited(job: Job, run: Run, now: datetime, within_s: float, what: str) -> list[Write]:
    """Its driver is on the way: give it up in time."""
    until = due(job, run, within_s)
    if now >= until:
        return [Order(run.id, "GONE"), Move(JobState.FAILED, failure=failures.too_late(what, run))]
    later = job.deadline is None or abs((until - job.deadline).total_seconds()) > 1
    news = run.failure is not None and not same(run.failure, job.failure)
    return [Wait((until - now).total_seconds(), run.failure or job.failure)] if later or news else []


def same(one: Failure | None, other: Failure | None) -> bool:
    """Whether two failures say the same, whenever they do."""
    if one is None or other is None:
        return one is other
    return one.model_copy(update={"at": None}) == other.model_copy(update={"at": None})
