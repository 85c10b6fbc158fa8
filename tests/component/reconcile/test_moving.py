"""Single decisions of planned moves: the driver runs until a standby can take over, and every wait has an end."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, Failure, JobState
from clonos_api.reconcile import decisions as d
from clonos_api.reconcile.deadlines import HAND_OVER_S, MAKE_ROOM_S, PREPARE_S, PROVE_S, RECOVER_S
from clonos_api.reconcile.decide import decide
from clonos_api.reconcile.facts import HostFacts, JobFacts, RunFacts, StandbyFacts
from clonos_api.reconcile.load import _awaited
from clonos_api.reconcile.placement import HOST_LABEL, Fleet
from clonos_api.reconcile.states.moving import MAX_STANDBYS
from clonos_api.store.columns import Moving
from clonos_api.store.tables import JobRow, RunRow
from support.stored import typed

S = JobState
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=100)
BROKEN = Failure(error="job-code-failed", what="It raised.", domain="user")
LOST = Failure(error="driver-crashed", what="It was killed.", domain="run", retry=True)


def moving(cause: Any = "move", **more: Any) -> Moving:
    base: dict[str, Any] = {"cause": cause, "leaves": "a", "version": 1, "previous": 1, "until": LATER}
    return Moving(**{**base, **({"version": 2} if cause == "upgrade" else {}), **more})


def job(plan: Moving | None, *standbys: StandbyFacts, state: JobState = S.RUNNING, **more: Any) -> JobFacts:
    version = plan.version if plan is not None else 1
    base: dict[str, Any] = {
        "since": NOW,
        "version": version,
        "relocatable": True,
        "standbys": standbys,
        "planned_move": plan,
    }
    return JobFacts(id="j", name="words", state=state, **{"desired": DesiredState.RUNNING, **base, **more})


def working(run: str = "r", host: str = "a", **more: Any) -> RunFacts:
    base: dict[str, Any] = {"state": "RUNNING", "driver_state": "RUNNING", "claimed": True, "created_at": NOW}
    return RunFacts(id=run, host=host, **{**base, **more})


def standby(
    run: str = "s", host: str = "b", state: str = "READY", version: int = 1, *, ended: bool = False
) -> StandbyFacts:
    return StandbyFacts(run=run, host=host, state=state, version=version, ended=ended)


def fleet(*states: HostState, slots: int = 2, reserved: int = 0) -> Fleet:
    """Hosts a, b, c, in these states; the job is on a."""
    all_states = [*states, *[HostState.READY] * (3 - len(states))]
    names = zip("abc", all_states, strict=True)
    hosts = [
        HostFacts(id=name, name=name, domain=name, state=state, slots=slots, used=name == "a") for name, state in names
    ]
    return Fleet(hosts, reserved)


DONE = d.Decision(move=d.MoveChange())


def step(plan: Moving, **changes: Any) -> d.MoveChange:
    """The move continues, with these changes."""
    return d.MoveChange(after=plan.model_copy(update=changes))


def added(made: d.Decision) -> d.AddStandby:
    (addition,) = made.standbys.add
    assert addition.for_move
    return addition


def ended(made: d.Decision) -> d.MoveChange:
    """How the move ended."""
    assert made.move is not None
    assert made.move.after is None
    return made.move


def alone(made: d.Decision) -> bool:
    """Whether only the move ends: the driver continues."""
    return made == d.Decision(move=ended(made))


def error_of(made: d.Decision) -> str | None:
    failure = ended(made).failure
    return failure.error if failure is not None else None


def reverted(made: d.Decision) -> d.MoveChange | None:
    """The way back to the version before; None: there is none."""
    return made.move if made.move is not None and made.move.after is not None and made.move.version else None


# Preparation of a standby


HAND_OVER = d.Decision(
    recovery=d.BeginRecovery("move"),
    standbys=d.StandbyChange(promote="s"),
    move=step(moving(), standby="s", handed_at=NOW),
)


def test_a_ready_standby_claims_while_the_driver_works() -> None:
    writes = decide(job(moving(), standby()), working(), fleet(), NOW)
    assert writes == HAND_OVER


@pytest.mark.parametrize(
    ("plan", "candidate"),
    [
        (moving(to="c"), standby(host="b")),
        (moving(), standby(host="a")),
        (moving(), standby(state="WARMING")),
        (moving(), standby(state="STALE")),
        (moving("upgrade"), standby(version=1)),
        (moving(), standby(version=2)),
    ],
)
def test_a_standby_elsewhere_not_ready_or_of_another_version_is_not_used(plan: Moving, candidate: StandbyFacts) -> None:
    writes = decide(job(plan, candidate), working(), fleet(), NOW)
    warms = d.Decision(move=step(plan, standby="s"))
    assert writes == warms or added(writes)


def test_hosts_that_have_gone_silent_are_not_moved_to_and_left_for_good_reason_first() -> None:
    hosts = [HostFacts(id="a", name="a", used=1), HostFacts(id="b", name="b", unresponsive=True)]
    assert decide(job(moving(), standby()), working(), Fleet(hosts), NOW) == d.NOTHING
    hosts = [HostFacts(id="a", name="a", used=1, unresponsive=True), HostFacts(id="b", name="b")]
    assert decide(job(moving(), standby()), working(), Fleet(hosts), NOW).move is None
    handed = job(moving(standby="s", handed_at=NOW), successor=waiting_relief())
    assert decide(handed, working(), Fleet(hosts), NOW).job.driver == "s", "the standby has received the promotion"


def test_a_missing_standby_is_placed_on_the_requested_host() -> None:
    assert added(decide(job(moving(to="c")), working(), fleet(), NOW)).host == "c"
    assert added(decide(job(moving()), working(), fleet(), NOW)).host == "b"
    newer = added(decide(job(moving("upgrade")), working(), fleet(), NOW))
    assert (newer.host, newer.newest) == ("b", True)
    alone = Fleet([HostFacts(id="a", name="a", used=1)])
    assert added(decide(job(moving("upgrade")), working(), alone, NOW)).host == "a"
    assert decide(job(moving()), working(), alone, NOW) == d.NOTHING, "not on its own host"


def test_a_standby_on_a_host_that_the_label_excludes_is_not_used() -> None:
    """A label that was changed during the move counts too."""
    labelled = job(moving(to="b"), standby(host="b"), labels={HOST_LABEL: "c"})
    assert decide(labelled, working(), fleet(), NOW) == d.NOTHING
    assert error_of(decide(labelled, working(), fleet(), LATER)) == "move-failed"


def test_a_move_waits_for_a_warming_standby_on_its_host() -> None:
    assert decide(job(moving(), standby(state="WARMING")), working(), fleet(), NOW) == d.Decision(
        move=step(moving(), standby="s")
    )
    waits = job(moving(standby="s"), standby(state="WARMING"))
    assert decide(waits, working(), fleet(), NOW) == d.NOTHING


def test_jobs_without_a_driver_come_first() -> None:
    crowded = Fleet([HostFacts(id="a", name="a", used=1, slots=1), HostFacts(id="b", name="b", slots=1)], reserved=1)
    assert decide(job(moving()), working(), crowded, NOW) == d.NOTHING
    assert error_of(decide(job(moving()), working(), crowded, LATER)) == "move-failed"


def test_a_standby_that_is_not_ready_in_time_is_given_up_and_the_driver_left_alone() -> None:
    waits = job(moving(standby="s"), standby(state="WARMING"))
    writes = decide(waits, working(), fleet(), LATER)
    assert alone(writes)
    assert error_of(writes) == "move-failed"


def test_standbys_that_end_are_followed_by_others_but_not_for_ever() -> None:
    died = working("s", "b", state="EXITED", driver_state=None, ended=True, failure=LOST)
    plan = moving(standby="s")
    next_one = decide(job(plan, successor=died), working(), fleet(), NOW)
    assert next_one == d.Decision(move=step(plan, standby=None, failed=1))
    tried = job(moving(standby="s", failed=MAX_STANDBYS - 1), successor=died)
    writes = decide(tried, working(), fleet(), NOW)
    assert alone(writes)
    failure = ended(writes).failure
    assert failure is not None
    assert "It was killed." in failure.what


def test_code_that_cannot_even_warm_up_is_not_tried_again() -> None:
    died = working("s", "b", state="EXITED", driver_state=None, ended=True, failure=BROKEN)
    writes = decide(job(moving("upgrade", standby="s"), successor=died), working(), fleet(), NOW)
    assert alone(writes), "the driver continues"
    failure = ended(writes).failure
    assert failure is not None
    assert "It raised." in failure.what
    assert failure.domain == "user"


def test_a_driver_that_crashes_during_a_move_recovers_first() -> None:
    fallen = working(state="EXITED", exit_code=-9)
    writes = decide(job(moving(to="c", standby="x"), standby()), fallen, fleet(), NOW)
    assert writes.standbys.promote == writes.job.driver == "s", "another standby of its version, on any host"
    assert error_of(decide(job(moving()), working("s", "b"), fleet(), NOW)) is None, "its host has changed already"
    assert added(decide(job(moving(to="c")), working("s", "b"), fleet(), NOW))


def test_a_standby_of_the_new_version_does_not_take_over_from_a_driver_of_the_old_one() -> None:
    """An epoch in doubt must be replayed by the code that planned it."""
    fallen = working(state="EXITED", exit_code=-9)
    writes = decide(job(moving("upgrade"), standby(version=2)), fallen, fleet(), NOW)
    assert writes.standbys.promote is None


@pytest.mark.parametrize("more", [{"desired": DesiredState.STOPPED}, {"restart": True}])
def test_a_stop_or_restart_overtakes_a_move(more: dict[str, Any]) -> None:
    assert error_of(decide(job(moving(), **more), working(), fleet(), NOW)) == "overtaken"


# The hand-over to another host


HANDED = moving(standby="s", handed_at=NOW)
STOPPED = d.RunChange(desired="STOPPED", timeout_s=60.0)


def waiting_relief(**more: Any) -> RunFacts:
    return working("s", "b", **{"driver_state": "PROMOTING", "claimed": False, **more})


def test_the_driver_works_until_the_standby_has_claimed() -> None:
    assert decide(job(HANDED, successor=waiting_relief()), working(), fleet(), NOW) == d.NOTHING
    writes = decide(job(HANDED, successor=waiting_relief(claimed=True)), working(), fleet(), NOW)
    assert writes == d.Decision(run=d.ABSENT, job=replace(d.enter(S.RECOVERING, RECOVER_S), driver="s"))


def test_a_driver_that_ended_as_superseded_is_no_failure_of_the_job() -> None:
    failure = Failure(error="superseded", what="A newer generation owns the job.")
    over = working(state="EXITED", driver_state="SUPERSEDED", exit_code=70, ended=True, failure=failure)
    assert decide(job(HANDED, successor=waiting_relief()), over, fleet(), NOW).job.driver == "s"
    lost = decide(job(HANDED, successor=waiting_relief()), working(), fleet(HostState.LOST), NOW)
    assert (lost.run, lost.job.driver) == (d.LOST, "s")


@pytest.mark.parametrize(
    ("relief", "at"),
    [
        (None, NOW),
        (waiting_relief(state="EXITED", ended=True, failure=LOST), NOW),
        (waiting_relief(), NOW + timedelta(seconds=HAND_OVER_S)),
    ],
)
def test_a_standby_that_does_not_claim_leaves_the_driver_where_it_was(relief: RunFacts | None, at: datetime) -> None:
    writes = decide(job(HANDED, successor=relief), working(), fleet(), at)
    assert alone(writes)
    assert error_of(writes) == "move-failed"


def test_a_drained_host_is_left_cold_where_no_standby_claims() -> None:
    drain = moving("drain", standby="s", handed_at=NOW)
    late = NOW + timedelta(seconds=HAND_OVER_S)
    for relief, at in ((None, NOW), (waiting_relief(), late)):
        writes = decide(job(drain, successor=relief), working(), fleet(HostState.DRAINING), at)
        assert ended(writes)
        assert writes.run == STOPPED, "otherwise the move would be retried without end"
    full = fleet(HostState.DRAINING, reserved=9)
    writes = decide(job(drain, successor=waiting_relief()), working(), full, late)
    assert alone(writes), "no host has a slot: the driver continues, and a later move is possible"
    undrained = decide(job(drain, successor=waiting_relief()), working(), fleet(), late)
    assert alone(undrained), "it may stay on its host"


def test_a_standby_whose_host_is_lost_is_not_waited_for() -> None:
    plan, there = moving(standby="s"), standby(state="WARMING")
    assert decide(job(plan, there), working(), fleet(), NOW) == d.NOTHING
    lost = fleet(HostState.READY, HostState.LOST)
    another = decide(job(plan, there, successor=waiting_relief()), working(), lost, NOW)
    assert another == d.Decision(move=step(plan, standby=None, failed=1))


def test_it_is_done_when_the_standby_works() -> None:
    taken = moving(standby="s", handed_at=NOW, taken_at=NOW)
    assert decide(job(taken, state=S.RECOVERING), working("s", "b"), fleet(), NOW) == d.Decision(job=d.enter(S.RUNNING))
    assert decide(job(taken), working("s", "b"), fleet(), NOW) == DONE
    failed = job(taken, state=S.FAILED, failure=BROKEN)
    assert error_of(decide(failed, working("s", "b"), fleet(), NOW)) == "job-code-failed"


# A drained host


BEGUN = d.Decision(move=d.MoveChange(after=moving("drain", until=NOW + timedelta(seconds=PREPARE_S))))


def test_a_drained_host_is_left_through_a_standby() -> None:
    drained = fleet(HostState.DRAINING)
    assert decide(job(None), working(), drained, NOW) == BEGUN
    assert added(decide(job(moving("drain")), working(), drained, NOW)).host in ("b", "c")
    ready = decide(job(moving("drain"), standby()), working(), drained, NOW)
    assert (ready.standbys.promote, ready.job.driver) == ("s", None)


def test_a_ready_standby_is_enough_where_no_slot_is_free() -> None:
    full = Fleet(
        [
            HostFacts(id="a", name="a", state=HostState.DRAINING, used=1),
            HostFacts(id="b", name="b", slots=1, used=1),
        ]
    )
    assert decide(job(None, standby()), working(), full, NOW) == BEGUN
    assert decide(job(None), working(), full, NOW) == d.NOTHING


def test_without_standbys_it_is_left_cold() -> None:
    drained = fleet(HostState.DRAINING)
    cold = decide(job(None, relocatable=False), working(), drained, NOW)
    assert cold.run == STOPPED
    late = decide(job(moving("drain")), working(), drained, LATER)
    assert ended(late)
    assert late.run == STOPPED
    full = fleet(HostState.DRAINING, reserved=9)
    assert decide(job(moving("drain")), working(), full, LATER) == d.NOTHING, "no host has a slot: the driver continues"


def test_a_host_that_is_drained_no_more_keeps_its_driver() -> None:
    writes = decide(job(moving("drain", standby="s"), standby(state="WARMING")), working(), fleet(), NOW)
    assert writes == DONE


# Another version


NEWER = moving("upgrade", standby="s", handed_at=NOW)


def test_a_driver_of_the_old_version_finishes_its_epoch_first() -> None:
    writes = decide(job(moving("upgrade"), standby(version=2)), working(), fleet(), NOW)
    assert writes == d.Decision(
        run=d.RunChange(desired="STOPPED", timeout_s=MAKE_ROOM_S), recovery=d.BeginRecovery("upgrade"), move=step(NEWER)
    )
    stopping = working(desired="STOPPED", state="STOPPING", driver_state="STOPPING")
    assert decide(job(NEWER, standby(version=2)), stopping, fleet(), NOW) == d.NOTHING
    stopped = replace(stopping, driver_state="STOPPED")
    promoted = d.promote("s", d.enter(S.RECOVERING, RECOVER_S))
    assert decide(job(NEWER, standby(version=2)), stopped, fleet(), NOW) == replace(
        promoted, run=d.ABSENT, recovery=d.BeginRecovery("upgrade")
    )


def test_without_the_new_standby_the_old_version_starts_again() -> None:
    stopped = working(desired="STOPPED", state="EXITED", driver_state="STOPPED", exit_code=0, ended=True)
    writes = decide(job(NEWER, successor=waiting_relief(failure=LOST)), stopped, fleet(), NOW)
    assert error_of(writes) == "move-failed"
    assert replace(writes, move=None) == d.Decision(
        run=d.ABSENT, recovery=d.BeginRecovery("upgrade"), job=d.enter(S.RECOVERING, RECOVER_S)
    )


def test_a_new_version_does_not_get_an_epoch_that_the_old_one_left_in_doubt() -> None:
    timed_out = Failure(error="stop-timed-out", what="The driver did not stop within 60 s.")
    killed = working(desired="STOPPED", state="EXITED", exit_code=-9, ended=True, failure=timed_out)
    writes = decide(job(NEWER, standby(version=2)), killed, fleet(), NOW)
    assert error_of(writes) == "move-failed"
    assert replace(writes, move=None) == d.Decision(
        run=d.ABSENT, recovery=d.BeginRecovery("upgrade"), job=d.enter(S.RECOVERING, RECOVER_S)
    )


def test_a_job_that_finishes_during_an_upgrade_is_finished() -> None:
    finished = working(desired="STOPPED", state="EXITED", driver_state="FINISHED", exit_code=0, ended=True)
    assert decide(job(NEWER, standby(version=2)), finished, fleet(), NOW) == d.Decision(job=d.enter(S.FINISHED))
    assert decide(job(NEWER, state=S.FINISHED), finished, fleet(), NOW) == DONE


TAKEN = moving("upgrade", standby="s", handed_at=NOW, taken_at=NOW)


def came_back(made: d.Decision) -> tuple[int | None, str]:
    """The version that the job goes back to, and the failure of the upgrade."""
    back = reverted(made)
    assert back is not None
    assert back.after is not None
    failure = back.after.failure
    assert failure is not None
    assert "version 1 is restored" in failure.kept
    return back.version, failure.error


def newer(**more: Any) -> RunFacts:
    return working("s", "b", **{"version": 2, **more})


def test_a_new_version_counts_once_all_queries_have_returned_or_it_has_no_input() -> None:
    assert decide(job(TAKEN), newer(), fleet(), NOW) == d.NOTHING
    second_starts = newer(epochs=1, awaited=frozenset({"totals"}))
    assert decide(job(TAKEN), second_starts, fleet(), NOW) == d.NOTHING
    assert decide(job(TAKEN), newer(epochs=1), fleet(), NOW) == DONE
    assert decide(job(TAKEN), newer(), fleet(), NOW + timedelta(seconds=PROVE_S)) == DONE


def test_a_version_that_restarts_again_and_again_is_not_accepted_between_two_restarts() -> None:
    late = NOW + timedelta(seconds=PROVE_S)
    restarted = newer(claimed_at=late - timedelta(seconds=5))
    assert decide(job(TAKEN), restarted, fleet(), late) == d.NOTHING
    assert decide(job(TAKEN), restarted, fleet(), late + timedelta(seconds=PROVE_S)) == DONE


def test_a_version_that_waits_for_kafka_is_neither_accepted_nor_taken_back() -> None:
    late = NOW + timedelta(seconds=600)
    recovers = job(TAKEN, state=S.RECOVERING)  # without a deadline, because its driver waited
    for driver_state in ("WAITING", "CLAIMING"):
        waits = newer(state="RUNNING", driver_state=driver_state)
        assert decide(recovers, waits, fleet(), late).move is None, driver_state
    runs = d.Decision(job=d.enter(S.RUNNING))
    assert decide(recovers, newer(), fleet(), late) == runs, "its queries outlasted the outage"
    again = job(TAKEN, state=S.RECOVERING, deadline=late + timedelta(seconds=RECOVER_S))
    claims = newer(state="RUNNING", driver_state="CLAIMING")
    assert reverted(decide(again, claims, fleet(), late + timedelta(seconds=PROVE_S - 1))) is None
    assert reverted(decide(again, claims, fleet(), late + timedelta(seconds=PROVE_S)))


def test_the_clock_of_a_host_that_is_ahead_does_not_delay_an_upgrade() -> None:
    ahead = newer(claimed_at=NOW + timedelta(hours=1))
    assert decide(job(TAKEN), ahead, fleet(), NOW + timedelta(seconds=PROVE_S)) == DONE


def test_a_query_that_never_published_is_not_awaited() -> None:
    """It may have no input, and then it never returns."""
    published = {name: {"epochs": 7} for name in ("words", "totals")}
    row = typed(JobRow, metrics={"queries": {**published, "new": {"epochs": 0}}})
    run = typed(RunRow, ingest_state={"queries": ["new", "newest", "totals", "words"], "returned": ["words"]})
    assert _awaited(row, run) == {"totals"}
    assert _awaited(JobRow(), run) == frozenset()


@pytest.mark.parametrize(
    ("run", "state", "at"),
    [
        (newer(state="EXITED", ended=True, failure=BROKEN), S.RECOVERING, NOW),
        (newer(state="EXITED", exit_code=-9), S.RUNNING, NOW),
        (newer(state="EXITED", ended=True, failure=BROKEN, epochs=3, awaited=frozenset({"totals"})), S.RUNNING, NOW),
        (newer(state="RUNNING", driver_state="RESTARTING"), S.RECOVERING, NOW + timedelta(seconds=PROVE_S)),
    ],
)
def test_a_new_version_that_falls_before_makes_the_job_go_back(run: RunFacts, state: JobState, at: datetime) -> None:
    deadline = NOW + timedelta(seconds=RECOVER_S)
    writes = decide(job(TAKEN, standby("o", "c", version=1), state=state, deadline=deadline), run, fleet(), at)
    assert writes.run == d.ABSENT
    assert writes.recovery is not None
    assert writes.recovery.cause == "rollback"
    assert writes.standbys.promote == writes.job.driver == "o", "a standby of the version that it had"
    assert came_back(writes) == (1, "upgrade-failed")
    cold = decide(job(TAKEN, standby("n", "c", version=2), state=state, deadline=deadline), run, fleet(), at)
    assert cold.standbys.promote is None, "no standby of the failed version"


def test_without_the_version_before_a_move_ends_and_no_other_version_is_chosen() -> None:
    failed = newer(state="EXITED", ended=True, failure=BROKEN)
    made = decide(job(TAKEN, state=S.RUNNING, previous_stored=False), failed, fleet(), NOW)
    assert alone(made)
    end = ended(made)
    assert end.version is None
    assert end.failure is not None
    assert end.failure.error == "upgrade-failed"
    assert "Version 1, which ran before, is not stored any more" in end.failure.what
    assert "the next start runs version 2" in end.failure.kept
    assert "clonos job rollback" in end.failure.hint
    stops = job(moving("upgrade"), previous_stored=False, desired=DesiredState.STOPPED)
    end = ended(decide(stops, working(), fleet(), NOW))
    assert end.failure is not None
    assert (end.version, end.failure.error) == (None, "upgrade-failed")


def test_the_operation_fails_once_the_older_version_works() -> None:
    failure = Failure(error="upgrade-failed", what="Version 2 failed.")
    back = TAKEN.model_copy(update={"failure": failure})
    placed = decide(job(back, state=S.RECOVERING, version=3), None, fleet(), NOW)
    assert placed.run.place is not None
    assert placed.move is None
    assert decide(job(back, version=3), working("o", "c"), fleet(), NOW) == d.Decision(
        move=d.MoveChange(failure=failure)
    )


def test_a_version_that_was_overtaken_by_another_is_left() -> None:
    writes = decide(job(moving("upgrade"), version=3), working(), fleet(), NOW)
    assert error_of(writes) == "overtaken"
    failed = newer(state="EXITED", ended=True, failure=BROKEN)
    writes = decide(job(TAKEN, version=3, state=S.RECOVERING), failed, fleet(), NOW)
    assert came_back(writes)[0] == 1, "a change for the next start does not keep a job on a version that fails"
