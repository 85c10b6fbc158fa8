"""Planned moves: to another host, off a draining host, or to another version; always through a standby.

1. Prepare: a standby gets READY while the driver continues. A failure in this step ends the move, not the job.
2. Hand over: to another host, the standby claims the log from the driver, which exits as superseded. To another
   version, the driver finishes its epoch first: an epoch in doubt must be replayed by the code that planned it.
3. Prove: the standby is the job's driver. All queries of a new version must return, or it must run for `PROVE_S`
   without a restart; if it fails before, the job reverts.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any, Final

from clonos.errors import StopTimedOut
from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, Failure, JobState, StopRequest
from clonos_api.reconcile.deadlines import HAND_OVER_S, MAKE_ROOM_S, PROVE_S, RECOVER_S, ROOM_MARGIN_S
from clonos_api.reconcile.decisions import (
    ABSENT,
    LOST,
    NOTHING,
    AddStandby,
    BeginRecovery,
    Decision,
    MoveChange,
    RunChange,
    StandbyChange,
    enter,
    promote,
    stay,
)
from clonos_api.reconcile.facts import HostFacts, JobFacts, RunFacts, StandbyFacts
from clonos_api.reconcile.placement import HOST_LABEL, Fleet, Placement, has_room, place
from clonos_api.reconcile.states import failures, stopping
from clonos_api.store.columns import Moving

# Standbys that may fail before one is READY.
MAX_STANDBYS: Final = 3
_WITHOUT_DRIVER: Final = frozenset(
    {JobState.CREATED, JobState.STOPPED, JobState.FAILED, JobState.FINISHED, JobState.CANCELLING, JobState.CANCELED}
)

_DONE: Final = Decision(move=MoveChange())


def decide(job: JobFacts, run: RunFacts | None, fleet: Fleet, now: datetime) -> Decision | None:
    """Decides for a job with a planned move; None: the module of the job's state decides."""
    move = job.planned_move
    if move is None:
        return None
    if job.desired is not DesiredState.RUNNING or job.restart:
        return _failed(job, move, failures.move_overtaken("a newer request changed the job"))
    if job.state in _WITHOUT_DRIVER:
        failure = move.failure or job.failure or failures.move_overtaken(f"the job is {job.state}")
        return _DONE if job.state is JobState.FINISHED else _failed(job, move, failure)
    if move.failure is not None:
        return _end(move.failure) if job.state is JobState.RUNNING else None
    if move.handed_at is None:
        return _prepare(job, move, run, fleet, now)
    if run is not None and run.id == move.standby:
        return _prove(job, move, run, fleet, now)
    if run is None or job.state is not JobState.RUNNING:
        return _failed(job, move, failures.move_overtaken("the job was placed again"))
    if move.cause == "upgrade":
        return _make_room(job, move, run, fleet, now)
    return _await_claim(job, move, run, fleet, now)


# Step 1: prepare


def _prepare(job: JobFacts, move: Moving, run: RunFacts | None, fleet: Fleet, now: datetime) -> Decision | None:
    if job.state is not JobState.RUNNING or run is None or _driver_failed(run, fleet):
        # The recovery of the driver comes first.
        late = _failed(job, move, failures.not_moved(f"Job {job.name} did not run long enough"))
        return late if now >= move.until and move.cause != "drain" else None
    if _target_reached(move, run, fleet):
        return _DONE
    if move.cause == "upgrade" and job.version != move.version:
        return _failed(job, move, failures.move_overtaken("the job was changed again"))
    if (ready := _suitable_standby(job, move, run, fleet, ready=True)) is not None:
        return _begin_hand_over(move, ready, now)
    if any(s.run == move.standby and not s.ended and fleet.alive(s.host) for s in job.standbys):
        if now < move.until:
            return None
        return _give_up(job, move, run, fleet, failures.not_moved("No standby was READY in time"))
    if move.standby is not None:
        return _standby_failed(job, move, run, fleet)
    if now >= move.until:
        return _give_up(job, move, run, fleet, failures.not_moved("No host was free for a standby"))
    if (warming := _suitable_standby(job, move, run, fleet)) is not None:
        return _continue(move, standby=warming.run)
    placement = _place(job, move, run, fleet)
    if placement is None:
        return None
    added = AddStandby(placement.host, placement.why, newest=move.cause == "upgrade", for_move=True)
    return Decision(standbys=StandbyChange(add=(added,)))


def _standby_failed(job: JobFacts, move: Moving, run: RunFacts, fleet: Fleet) -> Decision | None:
    """Select another standby after one ended before the hand-over, a limited number of times."""
    cause = job.successor.failure if job.successor is not None else None
    if move.failed + 1 < MAX_STANDBYS and (cause is None or cause.retry):
        return _continue(move, standby=None, failed=move.failed + 1)
    cause = cause or failures.driver_ended(job.successor if job.successor is not None else run)
    return _give_up(job, move, run, fleet, failures.not_moved("The standby ended before the hand-over", cause))


def _begin_hand_over(move: Moving, ready: StandbyFacts, now: datetime) -> Decision:
    handed = _continue(move, standby=ready.run, handed_at=now)
    if move.cause == "upgrade":
        stop = RunChange(desired="STOPPED", timeout_s=MAKE_ROOM_S)
        return replace(handed, run=stop, recovery=BeginRecovery("upgrade"))
    # The standby claims the log from the running driver.
    return replace(handed, standbys=StandbyChange(promote=ready.run), recovery=BeginRecovery("move"))


# Step 2: hand over


def _await_claim(job: JobFacts, move: Moving, run: RunFacts, fleet: Fleet, now: datetime) -> Decision | None:
    """To another host: waits for the claim of the standby; without a claim the driver continues."""
    standby = job.successor
    if (standby is not None and (standby.claimed or standby.running)) or _driver_failed(run, fleet):
        adopted = replace(enter(JobState.RECOVERING, RECOVER_S), driver=move.standby)
        return Decision(run=ABSENT if fleet.alive(run.host) else LOST, job=adopted)
    if standby is None or standby.discarded or standby.done or not fleet.alive(standby.host):
        cause = standby.failure if standby is not None else None
        return _give_up(job, move, run, fleet, failures.not_moved("The standby ended during the hand-over", cause))
    if now >= _after(move.handed_at, HAND_OVER_S):
        return _give_up(job, move, run, fleet, failures.not_moved("The standby did not take over in time"))
    return NOTHING


def _make_room(job: JobFacts, move: Moving, run: RunFacts, fleet: Fleet, now: datetime) -> Decision | None:
    """To another version: waits until the driver has finished its epoch, then promotes the standby."""
    lost = run.discarded or not fleet.alive(run.host)
    ended = run.done or run.state == "EXITED" or run.driver_state in ("STOPPED", "FINISHED")
    if run.finished:
        return None
    if not (lost or ended) and now < _after(move.handed_at, MAKE_ROOM_S + ROOM_MARGIN_S):
        return NOTHING
    left, recovering = LOST if lost else ABSENT, enter(JobState.RECOVERING, RECOVER_S)
    recovery = BeginRecovery("upgrade")
    standby = next((s for s in job.standbys if s.run == move.standby and s.ready), None)
    if run.failure is not None and run.failure.error == StopTimedOut.slug:
        # The new version would refuse the epoch in doubt; the old one replays it.
        failure = failures.not_moved("The old version did not finish its epoch in time", run.failure)
        return replace(_failed(job, move, failure), run=left, recovery=recovery, job=recovering)
    if standby is not None and fleet.alive(standby.host):
        return replace(promote(standby.run, recovering), run=left, recovery=recovery)
    cause = job.successor.failure if job.successor is not None else None
    failure = failures.not_moved("The standby of the new version ended before its promotion", cause)
    return replace(_failed(job, move, failure), run=left, recovery=recovery, job=recovering)


# Step 3: prove


def _prove(job: JobFacts, move: Moving, run: RunFacts, fleet: Fleet, now: datetime) -> Decision | None:
    """Wait, with the standby as driver, until all queries of a new version have returned and one finished an epoch.

    A version that has run for `PROVE_S` since its newest claim is accepted too: a query may have no input, or a long
    epoch. One that does not run `PROVE_S` after its attempt began is taken back; it may wait for Kafka.
    """
    if move.cause != "upgrade":
        return _DONE if job.state is JobState.RUNNING else None
    if (run.epochs and not run.awaited) or run.finished:
        return _DONE
    lost = run.discarded or not fleet.alive(run.host)
    if run.running and not lost:
        # The clock of the driver's host may be ahead.
        claimed_at = run.claimed_at if run.claimed_at is not None and run.claimed_at <= now else None
        taken_at = move.taken_at or now
        proven = now >= _after(max(taken_at, claimed_at or taken_at), PROVE_S)
        return _DONE if proven and job.state is JobState.RUNNING else None
    # RECOVERING has a deadline from the beginning of each attempt on, and none while the driver waits.
    until = None if job.deadline is None else job.deadline - timedelta(seconds=RECOVER_S - PROVE_S)
    late = until is not None and now >= max(until, _after(move.taken_at, PROVE_S)) and not run.waiting
    if not (lost or late or run.done or run.state == "EXITED"):
        return None
    cause = run.failure or (failures.host_lost(fleet.hosts.get(run.host)) if lost else failures.driver_ended(run))
    return _revert(job, move, run, fleet, cause, lost=lost)


def _revert(job: JobFacts, move: Moving, run: RunFacts, fleet: Fleet, cause: Failure, *, lost: bool) -> Decision:
    """Restores the previous version, with one of its standbys as driver if one is ready.

    If that version is not stored any more, only the move ends: no other version is chosen for the job.
    """
    if not job.previous_stored:
        return _end(failures.not_reverted(job.name, job.version, move.previous, cause))
    failure = failures.not_upgraded(job.name, move.version, move.previous, cause)
    again = job.state is JobState.RECOVERING
    recovering = stay(RECOVER_S, cause) if again else enter(JobState.RECOVERING, RECOVER_S, cause)
    previous = [s for s in job.standbys if s.ready and s.version == move.previous and fleet.alive(s.host)]
    best = min(previous, key=lambda s: (s.host == run.host, s.state != "READY", s.run), default=None)
    return replace(
        promote(best.run, recovering) if best is not None else Decision(job=recovering),
        run=LOST if lost else ABSENT,
        recovery=BeginRecovery("rollback", cause),
        # The move ends when the older version runs.
        move=MoveChange(after=move.model_copy(update={"failure": failure}), version=move.previous),
    )


# Shared


def _continue(move: Moving, **changes: Any) -> Decision:
    return Decision(move=MoveChange(after=move.model_copy(update=changes)))


def _end(failure: Failure | None, version: int | None = None) -> Decision:
    return Decision(move=MoveChange(failure=failure, version=version))


def _failed(job: JobFacts, move: Moving, failure: Failure) -> Decision:
    """End a move that failed. The next start runs the version that worked, unless the job was changed again."""
    back = move.cause == "upgrade" and job.version == move.version
    if back and not job.previous_stored:
        return _end(failures.not_reverted(job.name, job.version, move.previous, failure))
    return _end(failure, version=move.previous if back else None)


def _give_up(job: JobFacts, move: Moving, run: RunFacts, fleet: Fleet, failure: Failure) -> Decision | None:
    """End the move; the driver continues. It still must leave a draining host: cold, once a slot is free."""
    if move.cause != "drain" or _target_reached(move, run, fleet):
        return _failed(job, move, failure)
    ended = _end(failure)
    if has_room(job, fleet):
        return replace(stopping.stop(run, StopRequest()), move=ended.move)
    return None if move.handed_at is None else ended


def _driver_failed(run: RunFacts, fleet: Fleet) -> bool:
    lost = not fleet.alive(run.host) or fleet.unresponsive(run.host)
    return run.discarded or run.done or run.restarting or lost


def _target_reached(move: Moving, run: RunFacts, fleet: Fleet) -> bool:
    """Whether the driver has its target host or version without the move: it recovered there, or the drain ended."""
    match move.cause:
        case "upgrade":
            return run.version == move.version
        case "drain":
            return fleet.hosts[run.host].state is not HostState.DRAINING
        case _:
            return run.host == move.to if move.to is not None else run.host != move.leaves


def _suits(job: JobFacts, move: Moving, run: RunFacts, host: HostFacts | None) -> bool:
    if host is None or host.state is not HostState.READY or host.unresponsive:
        return False
    if job.labels.get(HOST_LABEL) not in (None, host.name):
        return False
    if move.cause == "upgrade":
        return True
    return host.id == move.to if move.to is not None else host.id != run.host


def _suitable_standby(
    job: JobFacts, move: Moving, run: RunFacts, fleet: Fleet, *, ready: bool = False
) -> StandbyFacts | None:
    """Return a standby for the move, a READY one if `ready`; preferably on another host than the driver."""
    version = move.version if move.cause == "upgrade" else run.version
    suitable = [
        standby
        for standby in job.standbys
        if not standby.ended
        and standby.version == version
        and _suits(job, move, run, fleet.hosts.get(standby.host))
        and (standby.state == "READY" or not ready)
    ]
    return min(suitable, key=lambda s: (s.host == run.host, s.run), default=None)


def _place(job: JobFacts, move: Moving, run: RunFacts, fleet: Fleet) -> Placement | None:
    """Return a host for a standby that takes over; None: there is none."""
    if fleet.free <= fleet.reserved:
        return None
    if move.cause == "drain":
        placement = place(job, fleet)
        if not isinstance(placement, Placement):
            return None
        return Placement(placement.host, f"to leave a draining host; {placement.why}")
    reaching = fleet.open_for(job.newest_cluster if move.cause == "upgrade" else job.cluster)
    hosts = [host for host in reaching if (not job.local or host.id == job.home) and _suits(job, move, run, host)]
    driver = fleet.hosts.get(run.host)
    best = min(
        hosts,
        key=lambda host: (
            host.id == run.host,
            bool(fleet.memory_shortage(host, standby=True)),
            driver is not None and host.domain == driver.domain,
            Fraction(host.used, host.slots),
            host.name,
        ),
        default=None,
    )
    if best is None:
        return None
    target = f"for version {move.version}" if move.cause == "upgrade" else "the job moves here"
    return Placement(best.id, f"{target} ({best.used} of {best.slots} slots taken)")


def _after(moment: datetime | None, seconds: float) -> datetime:
    assert moment is not None
    return moment + timedelta(seconds=seconds)
