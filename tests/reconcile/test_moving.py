"""Planned moves, decision by decision: the driver works until a standby can take over, and nothing waits for ever."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, Failure, JobState, StopMode
from clonos_api.reconcile import writes as w
from clonos_api.reconcile.deadlines import HAND_OVER_S, MAKE_ROOM_S, PREPARE_S, PROVE_S, RECOVER_S
from clonos_api.reconcile.decide import decide
from clonos_api.reconcile.facts import Host, Job, Run, Waiting
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.states.moving import TRIES
from clonos_api.store.moves import Moving

S = JobState
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=100)
BROKEN = Failure(error="job-code-failed", what="It raised.", domain="user")
LOST = Failure(error="driver-died", what="It was killed.", domain="run", retry=True)


def moving(cause: Any = "move", **more: Any) -> Moving:
    base: dict[str, Any] = {"cause": cause, "leaves": "a", "version": 1, "previous": 1, "until": LATER}
    return Moving(**{**base, **({"version": 2} if cause == "upgrade" else {}), **more})


def job(plan: Moving | None, *standbys: Waiting, state: JobState = S.RUNNING, **more: Any) -> Job:
    version = plan.version if plan is not None else 1
    base: dict[str, Any] = {"since": NOW, "version": version, "warm": True, "standbys": standbys, "moving": plan}
    return Job(id="j", name="words", state=state, **{"desired": DesiredState.RUNNING, **base, **more})


def working(run: str = "r", agent: str = "a", **more: Any) -> Run:
    base: dict[str, Any] = {"state": "RUNNING", "driver_state": "RUNNING", "claimed": True, "created_at": NOW}
    return Run(id=run, agent=agent, **{**base, **more})


def standby(run: str = "s", agent: str = "b", state: str = "READY", version: int = 1, *, over: bool = False) -> Waiting:
    return Waiting(run=run, agent=agent, state=state, version=version, over=over)


def fleet(*states: HostState, slots: int = 2, owed: int = 0) -> Fleet:
    """Hosts a, b, c, in these states; the job is on a."""
    all_states = [*states, *[HostState.READY] * (3 - len(states))]
    names = zip("abc", all_states, strict=True)
    hosts = [Host(id=name, name=name, domain=name, state=state, slots=slots, used=name == "a") for name, state in names]
    return Fleet(hosts, owed)


def the(kind: type, writes: list[w.Write]) -> Any:
    (found,) = [one for one in writes if isinstance(one, kind)]
    return found


def kinds(writes: list[w.Write]) -> list[type]:
    return [type(one) for one in writes]


def error_of(writes: list[w.Write]) -> str | None:
    failure = the(w.EndMove, writes).failure
    return failure.error if failure is not None else None


# A standby is made ready


def test_a_ready_standby_claims_while_the_driver_works() -> None:
    writes = decide(job(moving(), standby()), working(), fleet(), NOW)
    assert writes == [w.Fall("r", "move"), w.HandOver("s", claim=True)]


@pytest.mark.parametrize(
    ("plan", "one"),
    [
        (moving(to="c"), standby(agent="b")),
        (moving(), standby(agent="a")),
        (moving(), standby(state="WARMING")),
        (moving(), standby(state="STALE")),
        (moving("upgrade"), standby(version=1)),
        (moving(), standby(version=2)),
    ],
)
def test_one_that_is_elsewhere_not_ready_or_of_another_version_does_not(plan: Moving, one: Waiting) -> None:
    writes = decide(job(plan, one), working(), fleet(), NOW)
    assert kinds(writes) in ([w.PlaceStandby], [w.Note])


def test_hosts_that_have_gone_silent_are_not_moved_to_and_left_for_good_reason_first() -> None:
    hosts = [Host(id="a", name="a", used=1), Host(id="b", name="b", silent=True)]
    assert decide(job(moving(), standby()), working(), Fleet(hosts), NOW) == []
    hosts = [Host(id="a", name="a", used=1, silent=True), Host(id="b", name="b")]
    assert w.HandOver not in kinds(decide(job(moving(), standby()), working(), Fleet(hosts), NOW))
    handed = job(moving(standby="s", handed_at=NOW), relief=waiting_relief())
    assert w.Take("s") in decide(handed, working(), Fleet(hosts), NOW), "the standby was told already"


def test_where_there_is_none_one_is_placed_where_it_was_asked_for() -> None:
    assert the(w.PlaceStandby, decide(job(moving(to="c")), working(), fleet(), NOW)).agent == "c"
    assert the(w.PlaceStandby, decide(job(moving()), working(), fleet(), NOW)).agent == "b"
    newer = the(w.PlaceStandby, decide(job(moving("upgrade")), working(), fleet(), NOW))
    assert (newer.agent, newer.newest) == ("b", True)
    alone = Fleet([Host(id="a", name="a", used=1)])
    assert the(w.PlaceStandby, decide(job(moving("upgrade")), working(), alone, NOW)).agent == "a"
    assert decide(job(moving()), working(), alone, NOW) == [], "not where it is"


def test_one_that_is_warming_there_already_is_waited_for() -> None:
    assert decide(job(moving(), standby(state="WARMING")), working(), fleet(), NOW) == [w.Note("s")]
    waits = job(moving(standby="s"), standby(state="WARMING"))
    assert decide(waits, working(), fleet(), NOW) == []


def test_jobs_without_a_driver_come_first() -> None:
    crowded = Fleet([Host(id="a", name="a", used=1, slots=1), Host(id="b", name="b", slots=1)], owed=1)
    assert decide(job(moving()), working(), crowded, NOW) == []
    assert error_of(decide(job(moving()), working(), crowded, LATER)) == "not-moved"


def test_a_standby_that_is_not_ready_in_time_is_given_up_and_the_driver_left_alone() -> None:
    waits = job(moving(standby="s"), standby(state="WARMING"))
    writes = decide(waits, working(), fleet(), LATER)
    assert kinds(writes) == [w.EndMove]
    assert error_of(writes) == "not-moved"


def test_standbys_that_end_are_followed_by_others_but_not_for_ever() -> None:
    died = working("s", "b", state="EXITED", driver_state=None, ended=True, failure=LOST)
    assert decide(job(moving(standby="s"), relief=died), working(), fleet(), NOW) == [w.Note(None, failed=True)]
    tried = job(moving(standby="s", failed=TRIES - 1), relief=died)
    writes = decide(tried, working(), fleet(), NOW)
    assert kinds(writes) == [w.EndMove]
    assert "It was killed." in the(w.EndMove, writes).failure.what


def test_code_that_cannot_even_warm_up_is_not_tried_again() -> None:
    died = working("s", "b", state="EXITED", driver_state=None, ended=True, failure=BROKEN)
    writes = decide(job(moving("upgrade", standby="s"), relief=died), working(), fleet(), NOW)
    assert kinds(writes) == [w.EndMove], "the driver goes on"
    assert "It raised." in the(w.EndMove, writes).failure.what
    assert the(w.EndMove, writes).failure.domain == "user"


def test_a_driver_that_falls_meanwhile_recovers_first() -> None:
    fallen = working(state="EXITED", exit_code=-9)
    writes = decide(job(moving(to="c", standby="x"), standby()), fallen, fleet(), NOW)
    assert the(w.Promote, writes).run == "s", "another standby of its version, wherever that is"
    assert error_of(decide(job(moving()), working("s", "b"), fleet(), NOW)) is None, "it is elsewhere now"
    assert kinds(decide(job(moving(to="c")), working("s", "b"), fleet(), NOW)) == [w.PlaceStandby]


def test_a_standby_of_the_new_version_does_not_take_over_from_a_driver_of_the_old_one() -> None:
    """An epoch in doubt must be replayed by the code that planned it."""
    fallen = working(state="EXITED", exit_code=-9)
    writes = decide(job(moving("upgrade"), standby(version=2)), fallen, fleet(), NOW)
    assert w.Promote not in kinds(writes)


@pytest.mark.parametrize("more", [{"desired": DesiredState.STOPPED}, {"restart": True}])
def test_what_somebody_asks_for_meanwhile_counts(more: dict[str, Any]) -> None:
    assert error_of(decide(job(moving(), **more), working(), fleet(), NOW)) == "overtaken"


# The hand-over to another host


HANDED = moving(standby="s", handed_at=NOW)


def waiting_relief(**more: Any) -> Run:
    return working("s", "b", **{"driver_state": "PROMOTING", "claimed": False, **more})


def test_the_driver_works_until_the_standby_has_claimed() -> None:
    assert decide(job(HANDED, relief=waiting_relief()), working(), fleet(), NOW) == []
    writes = decide(job(HANDED, relief=waiting_relief(claimed=True)), working(), fleet(), NOW)
    assert writes == [w.Order("r", "GONE"), w.Take("s"), w.Move(S.RECOVERING, RECOVER_S)]


def test_a_driver_that_ended_as_superseded_is_no_failure_of_the_job() -> None:
    failure = Failure(error="superseded", what="A newer generation owns the job.")
    over = working(state="EXITED", driver_state="SUPERSEDED", exit_code=70, ended=True, failure=failure)
    assert w.Take("s") in decide(job(HANDED, relief=waiting_relief()), over, fleet(), NOW)
    lost = decide(job(HANDED, relief=waiting_relief()), working(), fleet(HostState.LOST), NOW)
    assert kinds(lost)[:2] == [w.Lose, w.Take]


@pytest.mark.parametrize(
    ("relief", "at"),
    [
        (None, NOW),
        (waiting_relief(state="EXITED", ended=True, failure=LOST), NOW),
        (waiting_relief(), NOW + timedelta(seconds=HAND_OVER_S)),
    ],
)
def test_a_standby_that_does_not_claim_leaves_the_driver_where_it_was(relief: Run | None, at: datetime) -> None:
    writes = decide(job(HANDED, relief=relief), working(), fleet(), at)
    assert kinds(writes) == [w.EndMove]
    assert error_of(writes) == "not-moved"


def test_a_drained_host_is_left_cold_where_no_standby_claims() -> None:
    drain = moving("drain", standby="s", handed_at=NOW)
    late = NOW + timedelta(seconds=HAND_OVER_S)
    for relief, at in ((None, NOW), (waiting_relief(), late)):
        writes = decide(job(drain, relief=relief), working(), fleet(HostState.DRAINING), at)
        assert kinds(writes) == [w.EndMove, w.Order, w.Move], "else it would be tried for ever"
    full = fleet(HostState.DRAINING, owed=9)
    writes = decide(job(drain, relief=waiting_relief()), working(), full, late)
    assert kinds(writes) == [w.EndMove], "nobody takes it: it works on, and may be moved"
    undrained = decide(job(drain, relief=waiting_relief()), working(), fleet(), late)
    assert kinds(undrained) == [w.EndMove], "it may stay where it is"


def test_a_standby_whose_host_is_lost_is_not_waited_for() -> None:
    plan, there = moving(standby="s"), standby(state="WARMING")
    assert decide(job(plan, there), working(), fleet(), NOW) == []
    lost = fleet(HostState.READY, HostState.LOST)
    assert decide(job(plan, there, relief=waiting_relief()), working(), lost, NOW) == [w.Note(None, failed=True)]


def test_it_is_done_when_the_standby_works() -> None:
    taken = moving(standby="s", handed_at=NOW, taken_at=NOW)
    assert decide(job(taken, state=S.RECOVERING), working("s", "b"), fleet(), NOW) == [w.Move(S.RUNNING)]
    assert decide(job(taken), working("s", "b"), fleet(), NOW) == [w.EndMove()]
    failed = job(taken, state=S.FAILED, failure=BROKEN)
    assert error_of(decide(failed, working("s", "b"), fleet(), NOW)) == "job-code-failed"


# A drained host


def test_a_drained_host_is_left_through_a_standby() -> None:
    drained = fleet(HostState.DRAINING)
    assert decide(job(None), working(), drained, NOW) == [w.BeginMove(PREPARE_S)]
    assert the(w.PlaceStandby, decide(job(moving("drain")), working(), drained, NOW)).agent in ("b", "c")
    ready = decide(job(moving("drain"), standby()), working(), drained, NOW)
    assert w.HandOver("s", claim=True) in ready


def test_a_ready_standby_is_enough_where_no_slot_is_free() -> None:
    full = Fleet(
        [
            Host(id="a", name="a", state=HostState.DRAINING, used=1),
            Host(id="b", name="b", slots=1, used=1),
        ]
    )
    assert decide(job(None, standby()), working(), full, NOW) == [w.BeginMove(PREPARE_S)]
    assert decide(job(None), working(), full, NOW) == []


def test_without_standbys_it_is_left_cold() -> None:
    drained = fleet(HostState.DRAINING)
    cold = decide(job(None, warm=False), working(), drained, NOW)
    assert cold[0] == w.Order("r", "STOP", StopMode.GRACEFUL, 60.0)
    late = decide(job(moving("drain")), working(), drained, LATER)
    assert kinds(late) == [w.EndMove, w.Order, w.Move]
    full = fleet(HostState.DRAINING, owed=9)
    assert decide(job(moving("drain")), working(), full, LATER) == [], "nobody takes it: it works on"


def test_a_host_that_is_drained_no_more_keeps_its_driver() -> None:
    writes = decide(job(moving("drain", standby="s"), standby(state="WARMING")), working(), fleet(), NOW)
    assert writes == [w.EndMove()]


# Another version


NEWER = moving("upgrade", standby="s", handed_at=NOW)


def test_a_driver_of_the_old_version_finishes_its_epoch_first() -> None:
    writes = decide(job(moving("upgrade"), standby(version=2)), working(), fleet(), NOW)
    assert writes == [
        w.HandOver("s", claim=False),
        w.Order("r", "STOP", StopMode.GRACEFUL, MAKE_ROOM_S),
        w.Fall("r", "upgrade"),
    ]
    stopping = working(goal="STOP", state="STOPPING", driver_state="STOPPING")
    assert decide(job(NEWER, standby(version=2)), stopping, fleet(), NOW) == []
    stopped = replace(stopping, driver_state="STOPPED")
    assert decide(job(NEWER, standby(version=2)), stopped, fleet(), NOW) == [
        w.Order("r", "GONE"),
        w.Fall("r", "upgrade"),
        w.Promote("s", "b"),
        w.Move(S.RECOVERING, RECOVER_S),
    ]


def test_without_the_new_standby_the_old_version_starts_again() -> None:
    stopped = working(goal="STOP", state="EXITED", driver_state="STOPPED", exit_code=0, ended=True)
    writes = decide(job(NEWER, relief=waiting_relief(failure=LOST)), stopped, fleet(), NOW)
    assert kinds(writes) == [w.Order, w.Fall, w.EndMove, w.Move]
    assert error_of(writes) == "not-moved"


def test_a_job_that_finishes_meanwhile_has_finished() -> None:
    finished = working(goal="STOP", state="EXITED", driver_state="FINISHED", exit_code=0, ended=True)
    assert decide(job(NEWER, standby(version=2)), finished, fleet(), NOW) == [w.Move(S.FINISHED)]
    assert decide(job(NEWER, state=S.FINISHED), finished, fleet(), NOW) == [w.EndMove()]


TAKEN = moving("upgrade", standby="s", handed_at=NOW, taken_at=NOW)


def newer(**more: Any) -> Run:
    return working("s", "b", **{"version": 2, **more})


def test_a_new_version_counts_once_it_has_finished_an_epoch_or_has_no_input() -> None:
    assert decide(job(TAKEN), newer(), fleet(), NOW) == []
    assert decide(job(TAKEN), newer(epochs=1), fleet(), NOW) == [w.EndMove()]
    assert decide(job(TAKEN), newer(), fleet(), NOW + timedelta(seconds=PROVE_S)) == [w.EndMove()]


@pytest.mark.parametrize(
    ("run", "state", "at"),
    [
        (newer(state="EXITED", ended=True, failure=BROKEN), S.RECOVERING, NOW),
        (newer(state="EXITED", exit_code=-9), S.RUNNING, NOW),
        (newer(state="RUNNING", driver_state="RESTARTING"), S.RECOVERING, NOW + timedelta(seconds=PROVE_S)),
    ],
)
def test_a_new_version_that_falls_before_makes_the_job_go_back(run: Run, state: JobState, at: datetime) -> None:
    writes = decide(job(TAKEN, standby("o", "c", version=1), state=state), run, fleet(), at)
    assert kinds(writes)[:3] == [w.Order, w.Fall, w.Revert]
    assert the(w.Promote, writes).run == "o", "a standby of the version that it had"
    back = the(w.Revert, writes)
    assert (back.version, back.failure.error) == (1, "upgrade-failed")
    assert "version 1 is the job's again, as version 3" in back.failure.kept
    cold = decide(job(TAKEN, standby("n", "c", version=2), state=state), run, fleet(), at)
    assert w.Promote not in kinds(cold), "not one of the version that failed"


def test_the_operation_fails_once_the_older_version_works() -> None:
    told = Failure(error="upgrade-failed", what="Version 2 failed.")
    back = TAKEN.model_copy(update={"failure": told})
    assert kinds(decide(job(back, state=S.RECOVERING, version=3), None, fleet(), NOW)) == [w.Place, w.Wait]
    assert decide(job(back, version=3), working("o", "c"), fleet(), NOW) == [w.EndMove(told)]


def test_a_version_that_was_overtaken_by_another_is_left() -> None:
    writes = decide(job(moving("upgrade"), version=3), working(), fleet(), NOW)
    assert error_of(writes) == "overtaken"
    failed = newer(state="EXITED", ended=True, failure=BROKEN)
    assert kinds(decide(job(TAKEN, version=3, state=S.RECOVERING), failed, fleet(), NOW)) == [w.EndMove]
