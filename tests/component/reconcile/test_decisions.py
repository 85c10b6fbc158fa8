"""Single decisions, for cases that a random walk rarely reaches."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, Failure, JobState, StopMode, StopRequest
from clonos_api.reconcile import decisions as d
from clonos_api.reconcile.deadlines import CLAIM_S, MAX_ATTEMPTS, RECOVER_S
from clonos_api.reconcile.decide import decide
from clonos_api.reconcile.ending import Completed, Failed, Progress, judge
from clonos_api.reconcile.facts import HostFacts, JobFacts, RunFacts, StandbyFacts
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.transitions import Intent

S, D = JobState, DesiredState
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(state: JobState, desired: DesiredState = D.RUNNING, **more: Any) -> JobFacts:
    return JobFacts(id="j", name="words", state=state, desired=desired, **{"since": NOW, **more})


def run(**more: Any) -> RunFacts:
    return RunFacts(**{"id": "r", "host": "a", "created_at": NOW, **more})


def working(**more: Any) -> RunFacts:
    return run(state="RUNNING", driver_state="RUNNING", claimed=True, **more)


def fleet(state: HostState = HostState.READY, *others: HostFacts, reserved: int = 0) -> Fleet:
    return Fleet([HostFacts(id="a", name="a", state=state, used=1), *others], reserved)


def moved(writes: list[d.Decision]) -> JobState | None:
    return next((decision.to for decision in writes if isinstance(decision, d.Transition)), None)


def kinds(writes: list[d.Decision]) -> list[type]:
    return [type(decision) for decision in writes]


@pytest.mark.parametrize(
    ("seconds", "attempt_at", "to"),
    [
        (CLAIM_S - 1, None, None),
        (CLAIM_S, None, S.FAILED),
        (CLAIM_S + 1, 60, None),  # another attempt began, with its own deadline
        (CLAIM_S + 60, 60, S.FAILED),
        (CLAIM_S * MAX_ATTEMPTS, CLAIM_S * MAX_ATTEMPTS - 1, S.FAILED),  # the total is limited
    ],
)
def test_starting_is_given_up_in_time(seconds: float, attempt_at: float | None, to: JobState | None) -> None:
    started = None if attempt_at is None else NOW + timedelta(seconds=attempt_at)
    writes = decide(job(S.STARTING), run(started_at=started), fleet(), NOW + timedelta(seconds=seconds))
    assert moved(writes) == to
    assert (d.UpdateRun("r", "ABSENT") in writes) == (to is S.FAILED)


def test_recovering_has_a_longer_time() -> None:
    fallen = run(state="STARTING", driver_state="RESTARTING")
    assert moved(decide(job(S.RECOVERING), fallen, fleet(), NOW + timedelta(seconds=RECOVER_S - 1))) is None
    assert moved(decide(job(S.RECOVERING), fallen, fleet(), NOW + timedelta(seconds=RECOVER_S))) is S.FAILED


@pytest.mark.parametrize("driver_state", ["RESTARTING", "CLAIMING", "RECONCILING"])
def test_a_driver_that_is_on_the_way_again_makes_the_job_recovering(driver_state: str) -> None:
    reported = run(state="RUNNING", driver_state=driver_state, claimed=True)
    assert moved(decide(job(S.RUNNING), reported, fleet(), NOW)) is S.RECOVERING
    assert moved(decide(job(S.RECOVERING), reported, fleet(), NOW)) is None
    assert moved(decide(job(S.RECOVERING), working(), fleet(), NOW)) is S.RUNNING


@pytest.mark.parametrize(
    ("fallen", "taken"),
    [
        ({"state": "EXITED", "exit_code": -9}, True),
        ({"state": "PENDING"}, False),  # its agent restarted, and has not adopted the driver yet
        ({"state": "STARTING"}, False),
        ({"state": "RUNNING", "driver_state": "CLAIMING"}, False),
        (
            {"state": "EXITED", "attempts_exhausted": True},
            False,
        ),  # each standby that takes over exits: the job is the cause
    ],
)
@pytest.mark.parametrize("state", [S.RUNNING, S.RECOVERING])
def test_a_standby_takes_over_from_a_driver_that_is_gone(state: JobState, fallen: dict[str, Any], taken: bool) -> None:
    waits = (StandbyFacts(run="s", host="b", state="READY"),)
    hosts = fleet(HostState.READY, HostFacts(id="b", name="b", used=1))
    writes = decide(job(state, standbys=waits, relocatable=True, deadline=NOW), run(**fallen), hosts, NOW)
    assert (d.PromoteStandby("s", "b") in writes) == taken


@pytest.mark.parametrize(("standby_state", "taken"), [("READY", True), ("WARMING", False)])
def test_a_standby_that_becomes_ready_after_the_loss_takes_over(standby_state: str, taken: bool) -> None:
    """It warmed up when the host was lost, and no host has a free slot."""
    waits = (StandbyFacts(run="s", host="b", state=standby_state),)
    hosts = fleet(HostState.LOST, HostFacts(id="b", name="b", slots=1, used=1))
    full = Failure(error="no-host", what="No host was free.")
    recovers = job(S.RECOVERING, standbys=waits, relocatable=True, failure=full)
    # After a restart that was requested without a driver, the job has no run.
    for lost in (run(state="LOST", desired="ABSENT"), None):
        writes = decide(recovers, lost, hosts, NOW)
        assert (d.PromoteStandby("s", "b") in writes) == taken
        errors = [w.failure and w.failure.error for w in writes if isinstance(w, d.SetDeadline)]
        assert errors == ([None] if taken else ["no-host"])


@pytest.mark.parametrize("state", [S.RUNNING, S.RECOVERING])
def test_a_standby_takes_over_from_a_host_without_heartbeats(state: JobState) -> None:
    """Also if that host runs a standby that was promoted a second ago."""
    waits = (StandbyFacts(run="s", host="b", state="READY"),)
    facts = job(state, standbys=waits, relocatable=True, deadline=NOW)
    promoted = run(state="RUNNING", driver_state="CLAIMING") if state is S.RECOVERING else working()
    silent = Fleet([HostFacts(id="a", name="a", used=1, unresponsive=True), HostFacts(id="b", name="b", used=1)])
    writes = decide(facts, promoted, silent, NOW)
    assert d.PromoteStandby("s", "b") in writes
    assert d.UpdateRun("r", "ABSENT") in writes
    both = Fleet([replace(host, unresponsive=True) for host in silent.hosts.values()])
    assert d.PromoteStandby("s", "b") not in decide(facts, promoted, both, NOW)


def test_superseded_by_a_stranger_is_final_and_by_a_ghost_of_ours_is_not() -> None:
    failure = Failure(error="superseded", what="A newer generation owns the job.")
    over = run(state="EXITED", driver_state="SUPERSEDED", exit_code=70, ended=True, failure=failure)
    assert moved(decide(job(S.RUNNING), over, fleet(), NOW)) is S.FAILED
    writes = decide(job(S.RUNNING, unreachable_runs=1), over, fleet(), NOW)
    assert moved(writes) is S.RECOVERING
    assert d.UpdateRun("r", "ABSENT") in writes


def test_a_user_failure_is_reported_unchanged() -> None:
    failure = Failure(error="job-code-failed", what="It raised.", domain="user")
    writes = decide(job(S.RUNNING), run(state="EXITED", exit_code=14, ended=True, failure=failure), fleet(), NOW)
    assert writes == [d.Transition(S.FAILED, failure=failure)]


def test_a_lost_host_is_left_at_once() -> None:
    far = HostFacts(id="b", name="b")
    writes = decide(job(S.RUNNING), working(), fleet(HostState.LOST, far), NOW)
    assert kinds(writes) == [d.MarkLost, d.BeginRecovery, d.Transition]
    lost = run(state="LOST", desired="ABSENT")
    placed = decide(job(S.RECOVERING), lost, fleet(HostState.LOST, far), NOW)
    assert placed[0] == d.PlaceRun("b", "least loaded of 1 free hosts (0 of 2 slots taken)")
    bound = job(S.RECOVERING, local=True, home="a")
    (wait,) = decide(bound, lost, fleet(HostState.LOST, far), NOW)
    assert isinstance(wait, d.SetDeadline)
    assert wait.failure is not None
    assert wait.failure.error == "no-host"
    assert decide(replace(bound, failure=wait.failure), lost, fleet(HostState.LOST, far), NOW) == []
    assert decide(replace(bound, failure=wait.failure), lost, fleet(HostState.READY), NOW)[0] == d.PlaceRun(
        "a", "its checkpoint is a path of this host"
    )


def test_a_drained_host_is_left_only_for_a_slot_that_nobody_is_owed() -> None:
    far = HostFacts(id="b", name="b", slots=1)
    writes = decide(job(S.RUNNING), working(), fleet(HostState.DRAINING, far), NOW)
    assert moved(writes) is S.STOPPING
    assert decide(job(S.RUNNING), working(), fleet(HostState.DRAINING, far, reserved=1), NOW) == []
    assert decide(job(S.RUNNING), working(), fleet(HostState.DRAINING), NOW) == []
    assert decide(job(S.RUNNING, local=True, home="a"), working(), fleet(HostState.DRAINING, far), NOW) == []


def test_a_stop_is_forced_and_then_ends_although_nobody_answers() -> None:
    stop = StopRequest(mode=StopMode.GRACEFUL, timeout_s=10)
    asked = job(S.RUNNING, D.STOPPED, stop=stop)
    assert decide(asked, working(), fleet(), NOW) == [
        d.UpdateRun("r", "STOPPED", StopMode.GRACEFUL, 10),
        d.Transition(S.STOPPING, 40),
    ]
    late = replace(asked, state=S.STOPPING, deadline=NOW)
    forced = decide(late, working(desired="STOPPED"), fleet(), NOW)
    assert forced[0] == d.UpdateRun("r", "STOPPED", StopMode.FORCE)
    ended = decide(late, working(desired="STOPPED", stop_mode=StopMode.FORCE), fleet(), NOW)
    assert ended[0] == d.UpdateRun("r", "ABSENT")
    assert moved(ended) is S.STOPPED


def test_force_after_graceful_is_passed_on_at_once() -> None:
    asked = job(S.STOPPING, D.STOPPED, stop=StopRequest(mode=StopMode.FORCE), deadline=NOW + timedelta(seconds=50))
    assert decide(asked, working(desired="STOPPED"), fleet(), NOW)[0] == d.UpdateRun("r", "STOPPED", StopMode.FORCE)


def test_a_stop_with_a_savepoint_waits_for_it_but_not_for_ever() -> None:
    asked = job(S.STOPPING, D.STOPPED, stop=StopRequest(mode=StopMode.CHECKPOINT), deadline=NOW + timedelta(seconds=9))
    over = run(desired="STOPPED", state="EXITED", driver_state="STOPPED", exit_code=0, ended=True)
    assert decide(asked, over, fleet(), NOW)[0] == d.TakeSavepoint("a")
    saving = replace(asked, savepoint="IN_PROGRESS")
    assert decide(saving, over, fleet(), NOW) == []
    assert kinds(decide(saving, over, fleet(), NOW + timedelta(seconds=9))) == [d.GiveUpSavepoint, d.Transition]
    assert moved(decide(replace(asked, savepoint="COMPLETED"), over, fleet(), NOW)) is S.STOPPED
    assert kinds(decide(saving, over, fleet(HostState.LOST), NOW)) == [d.GiveUpSavepoint, d.Transition]
    killed = replace(over, exit_code=-9)
    assert moved(decide(asked, killed, fleet(), NOW)) is S.STOPPED


def test_a_job_that_finishes_while_it_is_stopped_has_finished_and_with_a_restart_starts() -> None:
    over = run(desired="STOPPED", state="EXITED", driver_state="FINISHED", exit_code=0, ended=True)
    assert moved(decide(job(S.STOPPING, D.STOPPED), over, fleet(), NOW)) is S.FINISHED
    assert moved(decide(job(S.STOPPING, restart=True), over, fleet(), NOW)) is S.STARTING


def test_a_cancelled_job_is_cancelled_although_its_host_is_silent() -> None:
    asked = job(S.RUNNING, D.CANCELED)
    assert decide(asked, working(), fleet(), NOW)[0] == d.UpdateRun("r", "STOPPED", StopMode.FORCE)
    waiting = replace(asked, state=S.CANCELLING, deadline=NOW + timedelta(seconds=60))
    assert decide(waiting, working(desired="STOPPED"), fleet(), NOW) == []
    assert kinds(decide(waiting, working(desired="STOPPED"), fleet(HostState.LOST), NOW)) == [d.MarkLost, d.Transition]
    gone = decide(waiting, working(desired="STOPPED"), fleet(), NOW + timedelta(seconds=60))
    assert gone == [d.UpdateRun("r", "ABSENT"), d.Transition(S.CANCELED)]


def test_a_failed_job_waits_for_a_new_request() -> None:
    assert decide(job(S.FAILED), None, fleet(), NOW) == []
    assert decide(job(S.FAILED, restart=True), None, fleet(), NOW) == [d.Transition(S.STARTING)]
    failure = Failure(error="x", what="y")
    assert decide(job(S.FAILED, D.STOPPED, failure=failure), None, fleet(), NOW) == [
        d.Transition(S.STOPPED, failure=failure)
    ]


@pytest.mark.parametrize("state", [S.STARTING, S.RECOVERING])
def test_a_driver_that_waits_for_kafka_has_no_deadline_and_then_a_new_one(state: S) -> None:
    away = Failure(error="broker-unavailable", what="Kafka does not answer.")
    late = NOW + timedelta(hours=1)
    waiting = run(state="STARTING", driver_state="WAITING", claimed=True, failure=away)
    before = job(state, deadline=NOW + timedelta(seconds=60))
    assert decide(before, waiting, fleet(), NOW) == [d.SetDeadline(None, away)]
    shown = job(state, deadline=None, failure=away)
    assert decide(shown, waiting, fleet(), late) == [], "however long it lasts"
    claiming = run(state="STARTING", driver_state="CLAIMING", claimed=True)
    (again,) = decide(shown, claiming, fleet(), late)
    assert isinstance(again, d.SetDeadline)
    assert again.within_s is not None
    renewed = job(state, deadline=late + timedelta(seconds=again.within_s))
    assert decide(renewed, claiming, fleet(), late + timedelta(seconds=1)) == []
    assert moved(decide(renewed, claiming, fleet(), late + timedelta(seconds=again.within_s))) is S.FAILED


def test_a_start_from_a_point_that_is_gone_fails_before_anything_runs() -> None:
    writes = decide(job(S.STARTING, start_from=True, start_error="Savepoint s is FAILED."), None, fleet(), NOW)
    assert moved(writes) is S.FAILED
    assert not any(isinstance(decision, d.PlaceRun) for decision in writes)


def test_the_first_claim_uses_up_the_point_and_says_where_the_checkpoint_is() -> None:
    claimed = run(state="STARTING", driver_state="RECONCILING", claimed=True)
    assert decide(job(S.STARTING, start_from=True), claimed, fleet(), NOW) == [d.RecordFirstClaim("a")]
    assert decide(job(S.STARTING, resolutions=True), claimed, fleet(), NOW) == [d.RecordFirstClaim("a")]
    assert decide(job(S.STARTING, local=True), working(), fleet(), NOW) == [
        d.RecordFirstClaim("a"),
        d.Transition(S.RUNNING),
    ]
    assert decide(job(S.STARTING, local=True, home="a"), working(), fleet(), NOW) == [d.Transition(S.RUNNING)]


@pytest.mark.parametrize(
    ("kind", "state", "desired", "restart", "ends"),
    [
        ("start", S.STARTING, D.RUNNING, False, None),
        ("start", S.RUNNING, D.RUNNING, False, Completed),
        ("start", S.FINISHED, D.RUNNING, False, Completed),
        ("start", S.FAILED, D.RUNNING, True, None),  # it failed before; the new start is to come
        ("start", S.FAILED, D.RUNNING, False, Failed),
        ("start", S.STOPPING, D.STOPPED, False, Failed),
        ("restart", S.RUNNING, D.RUNNING, True, None),
        ("restart", S.RUNNING, D.RUNNING, False, Completed),
        ("stop", S.STOPPING, D.STOPPED, False, None),
        ("stop", S.STOPPED, D.STOPPED, False, Completed),
        ("stop", S.FAILED, D.STOPPED, False, None),
        ("stop", S.FINISHED, D.STOPPED, False, Completed),
        ("stop", S.STARTING, D.RUNNING, False, Failed),
        ("cancel", S.CANCELLING, D.CANCELED, False, None),
        ("cancel", S.CANCELED, D.CANCELED, False, Completed),
        ("delete", S.FINISHED, D.CANCELED, False, None),
        ("delete", S.CANCELED, D.CANCELED, False, Completed),
    ],
)
def test_operations_end_when_their_condition_is_true(
    kind: str, state: JobState, desired: DesiredState, restart: bool, ends: type | None
) -> None:
    ended = judge(kind, Progress(state=state, intent=Intent(desired, restart)))
    assert (None if ended is None else type(ended)) == ends


def test_a_stop_that_was_to_leave_a_savepoint_says_whether_it_did() -> None:
    progress = Progress(state=S.STOPPED, intent=Intent(D.STOPPED), savepoint_requested=True)
    assert isinstance(judge("stop", progress), Failed)
    assert judge("stop", replace(progress, savepoint="s")) == Completed({"savepoint": "s"})


def test_a_stop_on_a_lost_host_ends_at_once_and_says_so() -> None:
    asked = job(S.STOPPING, D.STOPPED, deadline=NOW + timedelta(seconds=50))
    writes = decide(asked, working(desired="STOPPED"), fleet(HostState.LOST), NOW)
    assert writes[0] == d.MarkLost("r")
    assert moved(writes) is S.STOPPED
    assert isinstance(writes[-1], d.Transition)
    assert writes[-1].failure is not None
    assert writes[-1].failure.error == "host-lost"


@pytest.mark.parametrize("host", [HostState.READY, HostState.LOST])
@pytest.mark.parametrize("standbys", [(), (StandbyFacts(run="s", host="b", state="READY"),)])
def test_a_driver_that_its_agent_stopped_did_not_crash(host: HostState, standbys: tuple[StandbyFacts, ...]) -> None:
    stopped = Failure(error="stopped-with-agent", what="Its agent stopped.", domain="environment", retry=True)
    other = HostFacts(id="b", name="b", slots=2)
    ended = run(state="EXITED", driver_state="STOPPED", claimed=True, exit_code=0, failure=stopped)
    writes = decide(job(S.RUNNING, standbys=standbys), ended, fleet(host, other), NOW)
    (recovery,) = [decision for decision in writes if isinstance(decision, d.BeginRecovery)]
    assert (recovery.cause, recovery.failure) == ("shutdown", stopped)
    assert moved(writes) is S.RECOVERING
    if standbys:  # its last reports arrived before it had exited
        stopping = run(state="STOPPING", driver_state="RUNNING", claimed=True, failure=stopped)
        silent = Fleet([HostFacts(id="a", name="a", used=1, unresponsive=True), other])
        taken = decide(job(S.RUNNING, standbys=standbys), stopping, silent, NOW)
        assert [w.cause for w in taken if isinstance(w, d.BeginRecovery)] == ["shutdown"]
    later = working(failure=stopped)  # the report of its next attempt
    (lost,) = [w for w in decide(job(S.RUNNING), later, fleet(HostState.LOST), NOW) if isinstance(w, d.BeginRecovery)]
    assert lost.cause == "host-lost"


def test_a_restart_stops_what_runs_and_is_heeded_where_nothing_does() -> None:
    asked = job(S.RUNNING, restart=True, stop=StopRequest(timeout_s=5))
    assert decide(asked, working(), fleet(), NOW) == [
        d.UpdateRun("r", "STOPPED", StopMode.GRACEFUL, 5),
        d.Transition(S.STOPPING, 35),
    ]
    assert decide(job(S.RECOVERING, restart=True), run(state="LOST", desired="ABSENT"), fleet(), NOW) == [
        d.AcknowledgeRestart()
    ]


def test_a_job_that_works_on_a_host_that_is_well_is_left_alone() -> None:
    better = HostFacts(id="b", name="b", slots=100)
    assert decide(job(S.RUNNING), working(), fleet(HostState.READY, better), NOW) == []
