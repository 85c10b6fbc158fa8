"""Planned moves, whatever the job's state: another host, a drained host, another version; through a standby each time.

1. A standby is made ready; the driver works as ever. What goes wrong until here is not the job's trouble.
2. The hand-over. To another host, the standby claims the log from the driver, which ends as superseded. To another
   version, the driver finishes its epoch first: an epoch in doubt must be replayed by the code that planned it.
3. The standby is the job's driver. A new version is to finish an epoch; one that falls before makes the job go back.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from fractions import Fraction
from typing import Final

from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, Failure, JobState, StopMode, StopRequest
from clonos_api.reconcile.deadlines import HAND_OVER_S, MAKE_ROOM_S, PROVE_S, RECOVER_S
from clonos_api.reconcile.facts import Host, Job, Run, Waiting
from clonos_api.reconcile.placement import HOST_LABEL, Fleet, Placed, place
from clonos_api.reconcile.states import failures, wishes
from clonos_api.reconcile.writes import (
    EndMove,
    Fall,
    HandOver,
    Lose,
    Move,
    Note,
    Order,
    PlaceStandby,
    Promote,
    Revert,
    Take,
    Wait,
    Write,
)
from clonos_api.store.moves import Moving

# Standbys that may end before one is READY.
TRIES: Final = 3
_MARGIN_S: Final = 30.0  # over what the agent keeps by itself
_RESTING: Final = frozenset(
    {JobState.CREATED, JobState.STOPPED, JobState.FAILED, JobState.FINISHED, JobState.CANCELLING, JobState.CANCELED}
)


def decide(job: Job, run: Run | None, fleet: Fleet, now: datetime) -> list[Write] | None:
    """Bring a planned move on; None: there is none, or it leaves the job's state to decide."""
    moving = job.moving
    if moving is None:
        return None
    if job.desired is not DesiredState.RUNNING or job.restart:
        return [EndMove(_overtaken("somebody asked for something else"))]
    if job.state in _RESTING:
        ended = job.failure or _overtaken(f"the job is {job.state}")
        return [EndMove(None if job.state is JobState.FINISHED else moving.failure or ended)]
    if moving.failure is not None:
        return [EndMove(moving.failure)] if job.state is JobState.RUNNING else None
    if moving.handed_at is None:
        return _prepare(job, moving, run, fleet, now)
    if run is not None and run.id == moving.standby:
        return _prove(job, moving, run, fleet, now)
    if run is None or job.state is not JobState.RUNNING:
        return [EndMove(_overtaken("the job was placed anew"))]
    if moving.cause == "upgrade":
        return _make_room(job, moving, run, fleet, now)
    return _hand_over(job, moving, run, fleet, now)


def _prepare(job: Job, moving: Moving, run: Run | None, fleet: Fleet, now: datetime) -> list[Write] | None:
    if job.state is not JobState.RUNNING or run is None or _fallen(run, fleet):
        # That comes first.
        late = EndMove(failures.not_moved(f"Job {job.name} did not run long enough"))
        return [late] if now >= moving.until and moving.cause != "drain" else None
    if _there(moving, run, fleet):
        return [EndMove()]
    if moving.cause == "upgrade" and job.version != moving.version:
        return [EndMove(_overtaken("the job was changed again"))]
    if (ready := _ready(job, moving, run, fleet)) is not None:
        return _handed(moving, run, ready)
    if any(one.run == moving.standby and not one.over and fleet.alive(one.agent) for one in job.standbys):
        if now < moving.until:
            return None
        return _give_up(job, moving, run, fleet, failures.not_moved("No standby was READY in time"))
    if moving.standby is not None:
        failure = job.relief.failure if job.relief is not None else None
        if moving.failed + 1 < TRIES and (failure is None or failure.retry):
            return [Note(None, failed=True)]
        ended = failures.not_moved("The standby that was to take over ended", failure or failures.ended(_or(job, run)))
        return _give_up(job, moving, run, fleet, ended)
    if now >= moving.until:
        return _give_up(job, moving, run, fleet, failures.not_moved("No host was free for a standby"))
    if (warming := _best(job, moving, run, fleet)) is not None:
        return [Note(warming.run)]
    found = _place(job, moving, run, fleet)
    return None if found is None else [PlaceStandby(found.agent, found.why, newest=moving.cause == "upgrade")]


def _handed(moving: Moving, run: Run, ready: Waiting) -> list[Write]:
    if moving.cause == "upgrade":
        room = Order(run.id, "STOP", StopMode.GRACEFUL, MAKE_ROOM_S)
        return [HandOver(ready.run, claim=False), room, Fall(run.id, "upgrade")]
    return [Fall(run.id, "move"), HandOver(ready.run, claim=True)]


def _hand_over(job: Job, moving: Moving, run: Run, fleet: Fleet, now: datetime) -> list[Write] | None:
    """The standby claims, or the driver goes on."""
    relief = job.relief
    if (relief is not None and (relief.claimed or relief.works)) or _fallen(run, fleet):
        assert moving.standby is not None
        left: Write = Order(run.id, "GONE") if fleet.alive(run.agent) else Lose(run.id)
        return [left, Take(moving.standby), Move(JobState.RECOVERING, RECOVER_S)]
    if relief is None or not relief.ours or relief.over or not fleet.alive(relief.agent):
        cause = relief.failure if relief is not None else None
        return _give_up(job, moving, run, fleet, failures.not_moved("The standby ended while it took over", cause))
    if now >= _after(moving.handed_at, HAND_OVER_S):
        return _give_up(job, moving, run, fleet, failures.not_moved("The standby did not take over in time"))
    return []


def _make_room(job: Job, moving: Moving, run: Run, fleet: Fleet, now: datetime) -> list[Write] | None:
    """The old driver finishes its epoch; then the new one is promoted."""
    lost = not run.ours or not fleet.alive(run.agent)
    ended = run.over or run.state == "EXITED" or run.driver_state in ("STOPPED", "FINISHED")
    if run.finished:
        return None
    if not (lost or ended) and now < _after(moving.handed_at, MAKE_ROOM_S + _MARGIN_S):
        return []
    left: Write = Lose(run.id) if lost else Order(run.id, "GONE")
    recovering = Move(JobState.RECOVERING, RECOVER_S)
    relief = next((one for one in job.standbys if one.run == moving.standby and one.ready), None)
    if relief is not None and fleet.alive(relief.agent):
        return [left, Fall(run.id, "upgrade"), Promote(relief.run, relief.agent), recovering]
    failure = job.relief.failure if job.relief is not None else None
    told = failures.not_moved("The standby of the new version ended while it was to take over", failure)
    return [left, Fall(run.id, "upgrade"), EndMove(told), recovering]


def _prove(job: Job, moving: Moving, run: Run, fleet: Fleet, now: datetime) -> list[Write] | None:
    """The standby is the driver now."""
    if moving.cause != "upgrade":
        return [EndMove()] if job.state is JobState.RUNNING else None
    if run.epochs or run.finished:
        return [EndMove()]
    late = now >= _after(moving.taken_at, PROVE_S)
    lost = not run.ours or not fleet.alive(run.agent)
    if late and job.state is JobState.RUNNING and run.works:
        return [EndMove()]  # it has no input
    if not (lost or late or run.over or run.state == "EXITED"):
        return None
    cause = run.failure or (failures.host_lost(fleet.hosts.get(run.agent)) if lost else failures.ended(run))
    if job.version != moving.version:
        return [EndMove(failures.not_moved(f"Version {moving.version} failed", cause))]
    told = failures.not_upgraded(moving.version, moving.previous, job.version + 1, cause)
    left: Write = Lose(run.id) if lost else Order(run.id, "GONE")
    back: list[Write] = [left, Fall(run.id, "upgrade", cause), Revert(moving.previous, told)]
    older = [one for one in job.standbys if one.ready and one.version == moving.previous and fleet.alive(one.agent)]
    if older:
        best = min(older, key=lambda one: (one.agent == run.agent, one.state != "READY", one.run))
        back.append(Promote(best.run, best.agent))
    if job.state is JobState.RECOVERING:
        return [*back, Wait(RECOVER_S, cause)]
    return [*back, Move(JobState.RECOVERING, RECOVER_S, cause)]


def _give_up(job: Job, moving: Moving, run: Run, fleet: Fleet, failure: Failure) -> list[Write] | None:
    """It goes on where it was; off a host that is drained it has to go all the same, cold, once there is room."""
    if moving.cause != "drain" or _there(moving, run, fleet):
        return [EndMove(failure)]
    if fleet.free > fleet.owed and isinstance(place(job, fleet), Placed):
        return [EndMove(failure), *wishes.stop(run, StopRequest())]
    return None if moving.handed_at is None else [EndMove(failure)]


def _fallen(run: Run, fleet: Fleet) -> bool:
    return not run.ours or run.over or run.fell or not fleet.alive(run.agent) or fleet.silent(run.agent)


def _there(moving: Moving, run: Run, fleet: Fleet) -> bool:
    """Whether the driver is where, and what, it is to be: it fell meanwhile, or its host is drained no more."""
    match moving.cause:
        case "upgrade":
            return run.version == moving.version
        case "drain":
            return fleet.hosts[run.agent].state is not HostState.DRAINING
        case _:
            return run.agent == moving.to if moving.to is not None else run.agent != moving.leaves


def _fits(moving: Moving, run: Run, host: Host | None) -> bool:
    if host is None or host.state is not HostState.READY or host.silent:
        return False
    if moving.cause == "upgrade":
        return True
    return host.id == moving.to if moving.to is not None else host.id != run.agent


def _fitting(job: Job, moving: Moving, run: Run, fleet: Fleet) -> list[Waiting]:
    version = moving.version if moving.cause == "upgrade" else run.version
    return [
        one
        for one in job.standbys
        if not one.over and one.version == version and _fits(moving, run, fleet.hosts.get(one.agent))
    ]


def _ready(job: Job, moving: Moving, run: Run, fleet: Fleet) -> Waiting | None:
    ready = [one for one in _fitting(job, moving, run, fleet) if one.state == "READY"]
    return min(ready, key=lambda one: (one.agent == run.agent, one.run), default=None)


def _best(job: Job, moving: Moving, run: Run, fleet: Fleet) -> Waiting | None:
    """One that is on the way to be READY."""
    return min(_fitting(job, moving, run, fleet), key=lambda one: (one.agent == run.agent, one.run), default=None)


def _place(job: Job, moving: Moving, run: Run, fleet: Fleet) -> Placed | None:
    """A host for a standby that is to be the driver."""
    if fleet.free <= fleet.owed:
        return None
    if moving.cause == "drain":
        found = place(job, fleet)
        return Placed(found.agent, f"to leave a drained host; {found.why}") if isinstance(found, Placed) else None
    label = job.labels.get(HOST_LABEL)
    bound = {job.home} if job.local else {host.id for host in fleet.open.values()}
    hosts = [
        host
        for host in fleet.open.values()
        if host.id in bound and label in (None, host.name) and _fits(moving, run, host)
    ]
    driver = fleet.hosts.get(run.agent)
    best = min(
        hosts,
        key=lambda host: (
            host.id == run.agent,
            driver is not None and host.domain == driver.domain,
            Fraction(host.used, host.slots),
            host.name,
        ),
        default=None,
    )
    if best is None:
        return None
    what = f"version {moving.version} is to take over" if moving.cause == "upgrade" else "the job is to move here"
    return Placed(best.id, f"{what} ({best.used} of {best.slots} slots taken)")


def _overtaken(why: str) -> Failure:
    kept = "what was asked for last counts."
    return Failure(error="overtaken", what=f"The move was given up: {why}.", kept=kept, domain="user")


def _or(job: Job, run: Run) -> Run:
    return job.relief if job.relief is not None else run


def _after(moment: datetime | None, seconds: float) -> datetime:
    assert moment is not None
    return moment + timedelta(seconds=seconds)
