"""Single decisions: the corners that a random walk meets too seldom."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, Failure, JobState, StopMode, StopRequest
from clonos_api.reconcile import writes as w
from clonos_api.reconcile.deadlines import ATTEMPTS_AT_MOST, CLAIM_S, RECOVER_S
from clonos_api.reconcile.decide import decide
from clonos_api.reconcile.facts import Host, Job, Run, Waiting
from clonos_api.reconcile.operations import Completed, Failed, Seen, judge
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.transitions import Asked

S, D = JobState, DesiredState
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(state: JobState, desired: DesiredState = D.RUNNING, **more: Any) -> Job:
    return Job(id="j", name="words", state=state, desired=desired, **{"since": NOW, **more})


def run(**more: Any) -> Run:
    return Run(**{"id": "r", "agent": "a", "created_at": NOW, **more})


def working(**more: Any) -> Run:
    return run(state="RUNNING", driver_state="RUNNING", claimed=True, **more)


def fleet(state: HostState = HostState.READY, *others: Host, owed: int = 0) -> Fleet:
    return Fleet([Host(id="a", name="a", state=state, used=1), *others], owed)


def moved(writes: list[w.Write]) -> JobState | None:
    return next((one.to for one in writes if isinstance(one, w.Move)), None)


def kinds(writes: list[w.Write]) -> list[type]:
    return [type(one) for one in writes]


@pytest.mark.parametrize(
    ("seconds", "attempt_at", "to"),
    [
        (CLAIM_S - 1, None, None),
        (CLAIM_S, None, S.FAILED),
        (CLAIM_S + 1, 60, None),  # another attempt began: its own time runs
        (CLAIM_S + 60, 60, S.FAILED),
        (CLAIM_S * ATTEMPTS_AT_MOST, CLAIM_S * ATTEMPTS_AT_MOST - 1, S.FAILED),  # but not for ever
    ],
)
def test_starting_is_given_up_in_time(seconds: float, attempt_at: float | None, to: JobState | None) -> None:
    started = None if attempt_at is None else NOW + timedelta(seconds=attempt_at)
    writes = decide(job(S.STARTING), run(started_at=started), fleet(), NOW + timedelta(seconds=seconds))
    assert moved(writes) == to
    assert (w.Order("r", "GONE") in writes) == (to is S.FAILED)


def test_recovering_has_a_longer_time() -> None:
    fallen = run(state="STARTING", driver_state="RESTARTING")
    assert moved(decide(job(S.RECOVERING), fallen, fleet(), NOW + timedelta(seconds=RECOVER_S - 1))) is None
    assert moved(decide(job(S.RECOVERING), fallen, fleet(), NOW + timedelta(seconds=RECOVER_S))) is S.FAILED


@pytest.mark.parametrize("driver_state", ["RESTARTING", "CLAIMING", "RECONCILING"])
def test_a_driver_that_is_on_the_way_again_makes_the_job_recovering(driver_state: str) -> None:
    told = run(state="RUNNING", driver_state=driver_state, claimed=True)
    assert moved(decide(job(S.RUNNING), told, fleet(), NOW)) is S.RECOVERING
    assert moved(decide(job(S.RECOVERING), told, fleet(), NOW)) is None
    assert moved(decide(job(S.RECOVERING), working(), fleet(), NOW)) is S.RUNNING


@pytest.mark.parametrize(
    ("fallen", "taken"),
    [
        ({"state": "EXITED", "exit_code": -9}, True),
        ({"state": "PENDING"}, False),  # its agent was started again, and has not found the driver yet
        ({"state": "STARTING"}, False),
        ({"state": "RUNNING", "driver_state": "CLAIMING"}, False),
        ({"state": "EXITED", "spent": True}, False),  # each that takes over falls: it is the job's own doing
    ],
)
@pytest.mark.parametrize("state", [S.RUNNING, S.RECOVERING])
def test_a_standby_takes_over_from_a_driver_that_is_gone(state: JobState, fallen: dict[str, Any], taken: bool) -> None:
    waits = (Waiting(run="s", agent="b", state="READY"),)
    hosts = fleet(HostState.READY, Host(id="b", name="b", used=1))
    writes = decide(job(state, standbys=waits, warm=True, deadline=NOW), run(**fallen), hosts, NOW)
    assert (w.Promote("s", "b") in writes) == taken


def test_superseded_by_a_stranger_is_final_and_by_a_ghost_of_ours_is_not() -> None:
    failure = Failure(error="superseded", what="A newer generation owns the job.")
    over = run(state="EXITED", driver_state="SUPERSEDED", exit_code=70, ended=True, failure=failure)
    assert moved(decide(job(S.RUNNING), over, fleet(), NOW)) is S.FAILED
    writes = decide(job(S.RUNNING, ghosts=1), over, fleet(), NOW)
    assert moved(writes) is S.RECOVERING
    assert w.Order("r", "GONE") in writes


def test_a_failure_of_the_user_is_told_as_it_was() -> None:
    failure = Failure(error="job-code-failed", what="It raised.", domain="user")
    writes = decide(job(S.RUNNING), run(state="EXITED", exit_code=14, ended=True, failure=failure), fleet(), NOW)
    assert writes == [w.Move(S.FAILED, failure=failure)]


def test_a_lost_host_is_left_at_once() -> None:
    far = Host(id="b", name="b")
    writes = decide(job(S.RUNNING), working(), fleet(HostState.LOST, far), NOW)
    assert kinds(writes) == [w.Lose, w.Fall, w.Move]
    lost = run(state="LOST", goal="GONE")
    placed = decide(job(S.RECOVERING), lost, fleet(HostState.LOST, far), NOW)
    assert placed[0] == w.Place("b", "least loaded of 1 free hosts (0 of 2 slots taken)")
    bound = job(S.RECOVERING, local=True, home="a")
    (wait,) = decide(bound, lost, fleet(HostState.LOST, far), NOW)
    assert isinstance(wait, w.Wait)
    assert wait.failure is not None
    assert wait.failure.error == "no-host"
    assert decide(replace(bound, failure=wait.failure), lost, fleet(HostState.LOST, far), NOW) == []
    assert decide(replace(bound, failure=wait.failure), lost, fleet(HostState.READY), NOW)[0] == w.Place(
        "a", "its checkpoint is a path of this host"
    )


def test_a_drained_host_is_left_only_for_a_slot_that_nobody_is_owed() -> None:
    far = Host(id="b", name="b", slots=1)
    writes = decide(job(S.RUNNING), working(), fleet(HostState.DRAINING, far), NOW)
    assert moved(writes) is S.STOPPING
    assert decide(job(S.RUNNING), working(), fleet(HostState.DRAINING, far, owed=1), NOW) == []
    assert decide(job(S.RUNNING), working(), fleet(HostState.DRAINING), NOW) == []
    assert decide(job(S.RUNNING, local=True, home="a"), working(), fleet(HostState.DRAINING, far), NOW) == []


def test_a_stop_is_forced_and_then_ends_although_nobody_answers() -> None:
    stop = StopRequest(mode=StopMode.GRACEFUL, timeout_s=10)
    asked = job(S.RUNNING, D.STOPPED, stop=stop)
    assert decide(asked, working(), fleet(), NOW) == [
        w.Order("r", "STOP", StopMode.GRACEFUL, 10),
        w.Move(S.STOPPING, 40),
    ]
    late = replace(asked, state=S.STOPPING, deadline=NOW)
    forced = decide(late, working(goal="STOP"), fleet(), NOW)
    assert forced[0] == w.Order("r", "STOP", StopMode.FORCE)
    ended = decide(late, working(goal="STOP", stop_mode=StopMode.FORCE), fleet(), NOW)
    assert ended[0] == w.Order("r", "GONE")
    assert moved(ended) is S.STOPPED


def test_force_after_graceful_is_passed_on_at_once() -> None:
    asked = job(S.STOPPING, D.STOPPED, stop=StopRequest(mode=StopMode.FORCE), deadline=NOW + timedelta(seconds=50))
    assert decide(asked, working(goal="STOP"), fleet(), NOW)[0] == w.Order("r", "STOP", StopMode.FORCE)


def test_a_stop_with_a_savepoint_waits_for_it_but_not_for_ever() -> None:
    asked = job(S.STOPPING, D.STOPPED, stop=StopRequest(mode=StopMode.CHECKPOINT), deadline=NOW + timedelta(seconds=9))
    over = run(goal="STOP", state="EXITED", driver_state="STOPPED", exit_code=0, ended=True)
    assert decide(asked, over, fleet(), NOW)[0] == w.Save("a")
    saving = replace(asked, savepoint="IN_PROGRESS")
    assert decide(saving, over, fleet(), NOW) == []
    assert kinds(decide(saving, over, fleet(), NOW + timedelta(seconds=9))) == [w.GiveUpSave, w.Move]
    assert moved(decide(replace(asked, savepoint="COMPLETED"), over, fleet(), NOW)) is S.STOPPED
    assert kinds(decide(saving, over, fleet(HostState.LOST), NOW)) == [w.GiveUpSave, w.Move]
    killed = replace(over, exit_code=-9)
    assert moved(decide(asked, killed, fleet(), NOW)) is S.STOPPED


def test_a_job_that_finishes_while_it_is_stopped_has_finished_and_with_a_restart_starts() -> None:
    over = run(goal="STOP", state="EXITED", driver_state="FINISHED", exit_code=0, ended=True)
    assert moved(decide(job(S.STOPPING, D.STOPPED), over, fleet(), NOW)) is S.FINISHED
    assert moved(decide(job(S.STOPPING, restart=True), over, fleet(), NOW)) is S.STARTING


def test_a_cancelled_job_is_cancelled_although_its_host_is_silent() -> None:
    asked = job(S.RUNNING, D.CANCELED)
    assert decide(asked, working(), fleet(), NOW)[0] == w.Order("r", "STOP", StopMode.FORCE)
    waiting = replace(asked, state=S.CANCELLING, deadline=NOW + timedelta(seconds=60))
    assert decide(waiting, working(goal="STOP"), fleet(), NOW) == []
    assert kinds(decide(waiting, working(goal="STOP"), fleet(HostState.LOST), NOW)) == [w.Lose, w.Move]
    gone = decide(waiting, working(goal="STOP"), fleet(), NOW + timedelta(seconds=60))
    assert gone == [w.Order("r", "GONE"), w.Move(S.CANCELED)]


def test_failed_rests_until_somebody_asks_anew() -> None:
    assert decide(job(S.FAILED), None, fleet(), NOW) == []
    assert decide(job(S.FAILED, restart=True), None, fleet(), NOW) == [w.Move(S.STARTING, fresh=True)]
    failure = Failure(error="x", what="y")
    assert decide(job(S.FAILED, D.STOPPED, failure=failure), None, fleet(), NOW) == [w.Move(S.STOPPED, failure=failure)]


def test_a_start_from_a_point_that_is_gone_fails_before_anything_runs() -> None:
    writes = decide(job(S.STARTING, start_from=True, lost_start="Savepoint s is FAILED."), None, fleet(), NOW)
    assert moved(writes) is S.FAILED
    assert not any(isinstance(one, w.Place) for one in writes)


def test_the_first_claim_uses_up_the_point_and_says_where_the_checkpoint_is() -> None:
    claimed = run(state="STARTING", driver_state="RECONCILING", claimed=True)
    assert decide(job(S.STARTING, start_from=True), claimed, fleet(), NOW) == [w.Settle("a")]
    assert decide(job(S.STARTING, local=True), working(), fleet(), NOW) == [w.Settle("a"), w.Move(S.RUNNING)]
    assert decide(job(S.STARTING, local=True, home="a"), working(), fleet(), NOW) == [w.Move(S.RUNNING)]


@pytest.mark.parametrize(
    ("kind", "state", "desired", "anew", "ends"),
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
def test_operations_end_when_what_they_wait_for_is_true(
    kind: str, state: JobState, desired: DesiredState, anew: bool, ends: type | None
) -> None:
    ended = judge(kind, Seen(state=state, asked=Asked(desired, anew)))
    assert (None if ended is None else type(ended)) == ends


def test_a_stop_that_was_to_leave_a_savepoint_says_whether_it_did() -> None:
    seen = Seen(state=S.STOPPED, asked=Asked(D.STOPPED), wants_savepoint=True)
    assert isinstance(judge("stop", seen), Failed)
    assert judge("stop", replace(seen, savepoint="s")) == Completed({"savepoint": "s"})


def test_a_stop_on_a_lost_host_ends_at_once_and_says_so() -> None:
    asked = job(S.STOPPING, D.STOPPED, deadline=NOW + timedelta(seconds=50))
    writes = decide(asked, working(goal="STOP"), fleet(HostState.LOST), NOW)
    assert writes[0] == w.Lose("r")
    assert moved(writes) is S.STOPPED
    assert isinstance(writes[-1], w.Move)
    assert writes[-1].failure is not None
    assert writes[-1].failure.error == "host-lost"


def test_a_restart_stops_what_runs_and_is_heeded_where_nothing_does() -> None:
    asked = job(S.RUNNING, restart=True, stop=StopRequest(timeout_s=5))
    assert decide(asked, working(), fleet(), NOW) == [
        w.Order("r", "STOP", StopMode.GRACEFUL, 5),
        w.Move(S.STOPPING, 35),
    ]
    assert decide(job(S.RECOVERING, restart=True), run(state="LOST", goal="GONE"), fleet(), NOW) == [w.Heed()]


def test_a_job_that_works_on_a_host_that_is_well_is_left_alone() -> None:
    better = Host(id="b", name="b", slots=100)
    assert decide(job(S.RUNNING), working(), fleet(HostState.READY, better), NOW) == []
