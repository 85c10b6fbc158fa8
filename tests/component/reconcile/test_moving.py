"""Single decisions of planned moves: the driver runs until a standby can take over, and every wait has an end."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, Failure, JobState, StopMode
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


def the(kind: type, writes: list[d.Decision]) -> Any:
    (decision,) = [write for write in writes if isinstance(write, kind)]
    return decision


def kinds(writes: list[d.Decision]) -> list[type]:
    return [type(write) for write in writes]


def error_of(writes: list[d.Decision]) -> str | None:
    failure = the(d.EndMove, writes).failure
    return failure.error if failure is not None else None


# Preparation of a standby


def test_a_ready_standby_claims_while_the_driver_works() -> None:
    writes = decide(job(moving(), standby()), working(), fleet(), NOW)
    assert writes == [d.BeginRecovery("r", "move"), d.HandOver("s", claim=True)]


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
    assert kinds(writes) in ([d.AddStandby], [d.SetMoveStandby])


def test_hosts_that_have_gone_silent_are_not_moved_to_and_left_for_good_reason_first() -> None:
    hosts = [HostFacts(id="a", name="a", used=1), HostFacts(id="b", name="b", unresponsive=True)]
    assert decide(job(moving(), standby()), working(), Fleet(hosts), NOW) == []
    hosts = [HostFacts(id="a", name="a", used=1, unresponsive=True), HostFacts(id="b", name="b")]
    assert d.HandOver not in kinds(decide(job(moving(), standby()), working(), Fleet(hosts), NOW))
    handed = job(moving(standby="s", handed_at=NOW), successor=waiting_relief())
    assert d.AdoptStandby("s") in decide(handed, working(), Fleet(hosts), NOW), "the standby has received the promotion"


def test_a_missing_standby_is_placed_on_the_requested_host() -> None:
    assert the(d.AddStandby, decide(job(moving(to="c")), working(), fleet(), NOW)).host == "c"
    assert the(d.AddStandby, decide(job(moving()), working(), fleet(), NOW)).host == "b"
    newer = the(d.AddStandby, decide(job(moving("upgrade")), working(), fleet(), NOW))
    assert (newer.host, newer.newest) == ("b", True)
    alone = Fleet([HostFacts(id="a", name="a", used=1)])
    assert the(d.AddStandby, decide(job(moving("upgrade")), working(), alone, NOW)).host == "a"
    assert decide(job(moving()), working(), alone, NOW) == [], "not on its own host"


def test_a_standby_on_a_host_that_the_label_excludes_is_not_used() -> None:
    """A label that was changed during the move counts too."""
    labelled = job(moving(to="b"), standby(host="b"), labels={HOST_LABEL: "c"})
    assert decide(labelled, working(), fleet(), NOW) == []
    assert error_of(decide(labelled, working(), fleet(), LATER)) == "move-failed"


def test_a_move_waits_for_a_warming_standby_on_its_host() -> None:
    assert decide(job(moving(), standby(state="WARMING")), working(), fleet(), NOW) == [d.SetMoveStandby("s")]
    waits = job(moving(standby="s"), standby(state="WARMING"))
    assert decide(waits, working(), fleet(), NOW) == []


def test_jobs_without_a_driver_come_first() -> None:
    crowded = Fleet([HostFacts(id="a", name="a", used=1, slots=1), HostFacts(id="b", name="b", slots=1)], reserved=1)
    assert decide(job(moving()), working(), crowded, NOW) == []
    assert error_of(decide(job(moving()), working(), crowded, LATER)) == "move-failed"


def test_a_standby_that_is_not_ready_in_time_is_given_up_and_the_driver_left_alone() -> None:
    waits = job(moving(standby="s"), standby(state="WARMING"))
    writes = decide(waits, working(), fleet(), LATER)
    assert kinds(writes) == [d.EndMove]
    assert error_of(writes) == "move-failed"


def test_standbys_that_end_are_followed_by_others_but_not_for_ever() -> None:
    died = working("s", "b", state="EXITED", driver_state=None, ended=True, failure=LOST)
    assert decide(job(moving(standby="s"), successor=died), working(), fleet(), NOW) == [
        d.SetMoveStandby(None, failed=True)
    ]
    tried = job(moving(standby="s", failed=MAX_STANDBYS - 1), successor=died)
    writes = decide(tried, working(), fleet(), NOW)
    assert kinds(writes) == [d.EndMove]
    assert "It was killed." in the(d.EndMove, writes).failure.what


def test_code_that_cannot_even_warm_up_is_not_tried_again() -> None:
    died = working("s", "b", state="EXITED", driver_state=None, ended=True, failure=BROKEN)
    writes = decide(job(moving("upgrade", standby="s"), successor=died), working(), fleet(), NOW)
    assert kinds(writes) == [d.EndMove], "the driver continues"
    assert "It raised." in the(d.EndMove, writes).failure.what
    assert the(d.EndMove, writes).failure.domain == "user"


def test_a_driver_that_crashes_during_a_move_recovers_first() -> None:
    fallen = working(state="EXITED", exit_code=-9)
    writes = decide(job(moving(to="c", standby="x"), standby()), fallen, fleet(), NOW)
    assert the(d.PromoteStandby, writes).run == "s", "another standby of its version, on any host"
    assert error_of(decide(job(moving()), working("s", "b"), fleet(), NOW)) is None, "its host has changed already"
    assert kinds(decide(job(moving(to="c")), working("s", "b"), fleet(), NOW)) == [d.AddStandby]


def test_a_standby_of_the_new_version_does_not_take_over_from_a_driver_of_the_old_one() -> None:
    """An epoch in doubt must be replayed by the code that planned it."""
    fallen = working(state="EXITED", exit_code=-9)
    writes = decide(job(moving("upgrade"), standby(version=2)), fallen, fleet(), NOW)
    assert d.PromoteStandby not in kinds(writes)


@pytest.mark.parametrize("more", [{"desired": DesiredState.STOPPED}, {"restart": True}])
def test_a_stop_or_restart_overtakes_a_move(more: dict[str, Any]) -> None:
    assert error_of(decide(job(moving(), **more), working(), fleet(), NOW)) == "overtaken"


# The hand-over to another host


HANDED = moving(standby="s", handed_at=NOW)


def waiting_relief(**more: Any) -> RunFacts:
    return working("s", "b", **{"driver_state": "PROMOTING", "claimed": False, **more})


def test_the_driver_works_until_the_standby_has_claimed() -> None:
    assert decide(job(HANDED, successor=waiting_relief()), working(), fleet(), NOW) == []
    writes = decide(job(HANDED, successor=waiting_relief(claimed=True)), working(), fleet(), NOW)
    assert writes == [d.UpdateRun("r", "ABSENT"), d.AdoptStandby("s"), d.Transition(S.RECOVERING, RECOVER_S)]


def test_a_driver_that_ended_as_superseded_is_no_failure_of_the_job() -> None:
    failure = Failure(error="superseded", what="A newer generation owns the job.")
    over = working(state="EXITED", driver_state="SUPERSEDED", exit_code=70, ended=True, failure=failure)
    assert d.AdoptStandby("s") in decide(job(HANDED, successor=waiting_relief()), over, fleet(), NOW)
    lost = decide(job(HANDED, successor=waiting_relief()), working(), fleet(HostState.LOST), NOW)
    assert kinds(lost)[:2] == [d.MarkLost, d.AdoptStandby]


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
    assert kinds(writes) == [d.EndMove]
    assert error_of(writes) == "move-failed"


def test_a_drained_host_is_left_cold_where_no_standby_claims() -> None:
    drain = moving("drain", standby="s", handed_at=NOW)
    late = NOW + timedelta(seconds=HAND_OVER_S)
    for relief, at in ((None, NOW), (waiting_relief(), late)):
        writes = decide(job(drain, successor=relief), working(), fleet(HostState.DRAINING), at)
        assert kinds(writes) == [d.EndMove, d.UpdateRun, d.Transition], (
            "otherwise the move would be retried without end"
        )
    full = fleet(HostState.DRAINING, reserved=9)
    writes = decide(job(drain, successor=waiting_relief()), working(), full, late)
    assert kinds(writes) == [d.EndMove], "no host has a slot: the driver continues, and a later move is possible"
    undrained = decide(job(drain, successor=waiting_relief()), working(), fleet(), late)
    assert kinds(undrained) == [d.EndMove], "it may stay on its host"


def test_a_standby_whose_host_is_lost_is_not_waited_for() -> None:
    plan, there = moving(standby="s"), standby(state="WARMING")
    assert decide(job(plan, there), working(), fleet(), NOW) == []
    lost = fleet(HostState.READY, HostState.LOST)
    assert decide(job(plan, there, successor=waiting_relief()), working(), lost, NOW) == [
        d.SetMoveStandby(None, failed=True)
    ]


def test_it_is_done_when_the_standby_works() -> None:
    taken = moving(standby="s", handed_at=NOW, taken_at=NOW)
    assert decide(job(taken, state=S.RECOVERING), working("s", "b"), fleet(), NOW) == [d.Transition(S.RUNNING)]
    assert decide(job(taken), working("s", "b"), fleet(), NOW) == [d.EndMove()]
    failed = job(taken, state=S.FAILED, failure=BROKEN)
    assert error_of(decide(failed, working("s", "b"), fleet(), NOW)) == "job-code-failed"


# A drained host


def test_a_drained_host_is_left_through_a_standby() -> None:
    drained = fleet(HostState.DRAINING)
    assert decide(job(None), working(), drained, NOW) == [d.BeginMove(PREPARE_S)]
    assert the(d.AddStandby, decide(job(moving("drain")), working(), drained, NOW)).host in ("b", "c")
    ready = decide(job(moving("drain"), standby()), working(), drained, NOW)
    assert d.HandOver("s", claim=True) in ready


def test_a_ready_standby_is_enough_where_no_slot_is_free() -> None:
    full = Fleet(
        [
            HostFacts(id="a", name="a", state=HostState.DRAINING, used=1),
            HostFacts(id="b", name="b", slots=1, used=1),
        ]
    )
    assert decide(job(None, standby()), working(), full, NOW) == [d.BeginMove(PREPARE_S)]
    assert decide(job(None), working(), full, NOW) == []


def test_without_standbys_it_is_left_cold() -> None:
    drained = fleet(HostState.DRAINING)
    cold = decide(job(None, relocatable=False), working(), drained, NOW)
    assert cold[0] == d.UpdateRun("r", "STOPPED", StopMode.GRACEFUL, 60.0)
    late = decide(job(moving("drain")), working(), drained, LATER)
    assert kinds(late) == [d.EndMove, d.UpdateRun, d.Transition]
    full = fleet(HostState.DRAINING, reserved=9)
    assert decide(job(moving("drain")), working(), full, LATER) == [], "no host has a slot: the driver continues"


def test_a_host_that_is_drained_no_more_keeps_its_driver() -> None:
    writes = decide(job(moving("drain", standby="s"), standby(state="WARMING")), working(), fleet(), NOW)
    assert writes == [d.EndMove()]


# Another version


NEWER = moving("upgrade", standby="s", handed_at=NOW)


def test_a_driver_of_the_old_version_finishes_its_epoch_first() -> None:
    writes = decide(job(moving("upgrade"), standby(version=2)), working(), fleet(), NOW)
    assert writes == [
        d.HandOver("s", claim=False),
        d.UpdateRun("r", "STOPPED", StopMode.GRACEFUL, MAKE_ROOM_S),
        d.BeginRecovery("r", "upgrade"),
    ]
    stopping = working(desired="STOPPED", state="STOPPING", driver_state="STOPPING")
    assert decide(job(NEWER, standby(version=2)), stopping, fleet(), NOW) == []
    stopped = replace(stopping, driver_state="STOPPED")
    assert decide(job(NEWER, standby(version=2)), stopped, fleet(), NOW) == [
        d.UpdateRun("r", "ABSENT"),
        d.BeginRecovery("r", "upgrade"),
        d.PromoteStandby("s", "b"),
        d.Transition(S.RECOVERING, RECOVER_S),
    ]


def test_without_the_new_standby_the_old_version_starts_again() -> None:
    stopped = working(desired="STOPPED", state="EXITED", driver_state="STOPPED", exit_code=0, ended=True)
    writes = decide(job(NEWER, successor=waiting_relief(failure=LOST)), stopped, fleet(), NOW)
    assert kinds(writes) == [d.UpdateRun, d.BeginRecovery, d.EndMove, d.Transition]
    assert error_of(writes) == "move-failed"


def test_a_new_version_does_not_get_an_epoch_that_the_old_one_left_in_doubt() -> None:
    timed_out = Failure(error="stop-timed-out", what="The driver did not stop within 60 s.")
    killed = working(desired="STOPPED", state="EXITED", exit_code=-9, ended=True, failure=timed_out)
    writes = decide(job(NEWER, standby(version=2)), killed, fleet(), NOW)
    assert kinds(writes) == [d.UpdateRun, d.BeginRecovery, d.EndMove, d.Transition]
    assert error_of(writes) == "move-failed"


def test_a_job_that_finishes_during_an_upgrade_is_finished() -> None:
    finished = working(desired="STOPPED", state="EXITED", driver_state="FINISHED", exit_code=0, ended=True)
    assert decide(job(NEWER, standby(version=2)), finished, fleet(), NOW) == [d.Transition(S.FINISHED)]
    assert decide(job(NEWER, state=S.FINISHED), finished, fleet(), NOW) == [d.EndMove()]


TAKEN = moving("upgrade", standby="s", handed_at=NOW, taken_at=NOW)


def newer(**more: Any) -> RunFacts:
    return working("s", "b", **{"version": 2, **more})


def test_a_new_version_counts_once_all_queries_have_returned_or_it_has_no_input() -> None:
    assert decide(job(TAKEN), newer(), fleet(), NOW) == []
    second_starts = newer(epochs=1, awaited=frozenset({"totals"}))
    assert decide(job(TAKEN), second_starts, fleet(), NOW) == []
    assert decide(job(TAKEN), newer(epochs=1), fleet(), NOW) == [d.EndMove()]
    assert decide(job(TAKEN), newer(), fleet(), NOW + timedelta(seconds=PROVE_S)) == [d.EndMove()]


def test_a_version_that_restarts_again_and_again_is_not_accepted_between_two_restarts() -> None:
    late = NOW + timedelta(seconds=PROVE_S)
    restarted = newer(claimed_at=late - timedelta(seconds=5))
    assert decide(job(TAKEN), restarted, fleet(), late) == []
    assert decide(job(TAKEN), restarted, fleet(), late + timedelta(seconds=PROVE_S)) == [d.EndMove()]


def test_a_version_that_waits_for_kafka_is_neither_accepted_nor_taken_back() -> None:
    late = NOW + timedelta(seconds=600)
    recovers = job(TAKEN, state=S.RECOVERING)  # without a deadline, because its driver waited
    for driver_state in ("WAITING", "CLAIMING"):
        waits = newer(state="RUNNING", driver_state=driver_state)
        assert not {d.EndMove, d.RevertVersion} & set(kinds(decide(recovers, waits, fleet(), late))), driver_state
    assert kinds(decide(recovers, newer(), fleet(), late)) == [d.Transition], "its queries outlasted the outage"
    again = job(TAKEN, state=S.RECOVERING, deadline=late + timedelta(seconds=RECOVER_S))
    claims = newer(state="RUNNING", driver_state="CLAIMING")
    assert d.RevertVersion not in kinds(decide(again, claims, fleet(), late + timedelta(seconds=PROVE_S - 1)))
    assert d.RevertVersion in kinds(decide(again, claims, fleet(), late + timedelta(seconds=PROVE_S)))


def test_the_clock_of_a_host_that_is_ahead_does_not_delay_an_upgrade() -> None:
    ahead = newer(claimed_at=NOW + timedelta(hours=1))
    assert decide(job(TAKEN), ahead, fleet(), NOW + timedelta(seconds=PROVE_S)) == [d.EndMove()]


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
    assert kinds(writes)[:3] == [d.UpdateRun, d.BeginRecovery, d.RevertVersion]
    assert the(d.BeginRecovery, writes).cause == "rollback"
    assert the(d.PromoteStandby, writes).run == "o", "a standby of the version that it had"
    back = the(d.RevertVersion, writes)
    assert (back.version, back.failure.error) == (1, "upgrade-failed")
    assert "version 1 is restored" in back.failure.kept
    cold = decide(job(TAKEN, standby("n", "c", version=2), state=state, deadline=deadline), run, fleet(), at)
    assert d.PromoteStandby not in kinds(cold), "no standby of the failed version"


def test_without_the_version_before_a_move_ends_and_no_other_version_is_chosen() -> None:
    failed = newer(state="EXITED", ended=True, failure=BROKEN)
    [end] = decide(job(TAKEN, state=S.RUNNING, previous_stored=False), failed, fleet(), NOW)
    assert isinstance(end, d.EndMove)
    assert end.version is None
    assert end.failure is not None
    assert end.failure.error == "upgrade-failed"
    assert "Version 1, which ran before, is not stored any more" in end.failure.what
    assert "the next start runs version 2" in end.failure.kept
    assert "clonos job rollback" in end.failure.hint
    [end] = decide(
        job(moving("upgrade"), previous_stored=False, desired=DesiredState.STOPPED), working(), fleet(), NOW
    )[:1]
    assert (end.version, end.failure.error) == (None, "upgrade-failed")


def test_the_operation_fails_once_the_older_version_works() -> None:
    failure = Failure(error="upgrade-failed", what="Version 2 failed.")
    back = TAKEN.model_copy(update={"failure": failure})
    assert kinds(decide(job(back, state=S.RECOVERING, version=3), None, fleet(), NOW)) == [d.PlaceRun, d.SetDeadline]
    assert decide(job(back, version=3), working("o", "c"), fleet(), NOW) == [d.EndMove(failure)]


def test_a_version_that_was_overtaken_by_another_is_left() -> None:
    writes = decide(job(moving("upgrade"), version=3), working(), fleet(), NOW)
    assert error_of(writes) == "overtaken"
    failed = newer(state="EXITED", ended=True, failure=BROKEN)
    writes = decide(job(TAKEN, version=3, state=S.RECOVERING), failed, fleet(), NOW)
    back = the(d.RevertVersion, writes)
    assert back.version == 1, "a change for the next start does not keep a job on a version that fails"
    assert "version 1 is restored" in back.failure.kept
