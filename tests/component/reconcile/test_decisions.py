"""Single decisions, for cases that a random walk rarely reaches."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clonos.errors import CLASSES, ClonosError
from clonos.resources.hosts import HostState, NextRun
from clonos.resources.jobs import DesiredState, Failure, JobState, StopMode, StopRequest
from clonos_api.reconcile import decisions as d
from clonos_api.reconcile.deadlines import CLAIM_S, MAX_ATTEMPTS, RECOVER_S
from clonos_api.reconcile.decide import decide
from clonos_api.reconcile.ending import Completed, Failed, Progress, judge
from clonos_api.reconcile.facts import HostFacts, JobFacts, RunFacts, StandbyFacts
from clonos_api.reconcile.placement import Fleet, Placement
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


def moved(made: d.Decision) -> JobState | None:
    return made.job.state.to if made.job.state is not None else None


def shown(made: d.Decision) -> str | None:
    """The failure that the job shows from now on."""
    assert made.job.state is not None
    return made.job.state.failure.error if made.job.state.failure is not None else None


FORCE = d.RunChange(desired="STOPPED", mode=StopMode.FORCE)
CLAIMED = d.JobChange(first_claim=True)


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
    assert (writes.run == d.ABSENT) == (to is S.FAILED)


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
    assert (writes.standbys.promote == "s") == taken


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
        assert (writes.standbys.promote == "s") == taken
        assert moved(writes) is None
        assert shown(writes) == (None if taken else "no-host")


@pytest.mark.parametrize("state", [S.RUNNING, S.RECOVERING])
def test_a_standby_takes_over_from_a_host_without_heartbeats(state: JobState) -> None:
    """Also if that host runs a standby that was promoted a second ago."""
    waits = (StandbyFacts(run="s", host="b", state="READY"),)
    facts = job(state, standbys=waits, relocatable=True, deadline=NOW)
    promoted = run(state="RUNNING", driver_state="CLAIMING") if state is S.RECOVERING else working()
    silent = Fleet([HostFacts(id="a", name="a", used=1, unresponsive=True), HostFacts(id="b", name="b", used=1)])
    writes = decide(facts, promoted, silent, NOW)
    assert (writes.standbys.promote, writes.job.driver, writes.run) == ("s", "s", d.ABSENT)
    both = Fleet([replace(host, unresponsive=True) for host in silent.hosts.values()])
    assert decide(facts, promoted, both, NOW).standbys.promote is None


def test_superseded_by_a_stranger_is_final_and_by_a_ghost_of_ours_is_not() -> None:
    failure = Failure(error="superseded", what="A newer generation owns the job.")
    over = run(state="EXITED", driver_state="SUPERSEDED", exit_code=70, ended=True, failure=failure)
    assert moved(decide(job(S.RUNNING), over, fleet(), NOW)) is S.FAILED
    writes = decide(job(S.RUNNING, unreachable_runs=1), over, fleet(), NOW)
    assert moved(writes) is S.RECOVERING
    assert writes.run == d.ABSENT


def test_a_user_failure_is_reported_unchanged() -> None:
    failure = Failure(error="job-code-failed", what="It raised.", domain="user")
    writes = decide(job(S.RUNNING), run(state="EXITED", exit_code=14, ended=True, failure=failure), fleet(), NOW)
    assert writes == d.Decision(job=d.enter(S.FAILED, failure=failure))


def test_a_lost_host_is_left_at_once() -> None:
    far = HostFacts(id="b", name="b")
    writes = decide(job(S.RUNNING), working(), fleet(HostState.LOST, far), NOW)
    assert writes.run == d.LOST
    assert writes.recovery is not None
    assert moved(writes) is S.RECOVERING
    lost = run(state="LOST", desired="ABSENT")
    placed = decide(job(S.RECOVERING), lost, fleet(HostState.LOST, far), NOW)
    assert placed.run.place == Placement("b", "least loaded of 1 free hosts (0 of 2 slots taken)")
    bound = job(S.RECOVERING, local=True, home="a")
    wait = decide(bound, lost, fleet(HostState.LOST, far), NOW)
    assert (moved(wait), shown(wait)) == (None, "no-host")
    assert wait.job.state is not None
    waits = replace(bound, failure=wait.job.state.failure)
    assert decide(waits, lost, fleet(HostState.LOST, far), NOW) == d.NOTHING
    there = decide(waits, lost, fleet(HostState.READY), NOW)
    assert there.run.place == Placement("a", "its checkpoint is a path of this host")


def test_a_drained_host_is_left_only_for_a_slot_that_nobody_is_owed() -> None:
    far = HostFacts(id="b", name="b", slots=1)
    writes = decide(job(S.RUNNING), working(), fleet(HostState.DRAINING, far), NOW)
    assert moved(writes) is S.STOPPING
    assert decide(job(S.RUNNING), working(), fleet(HostState.DRAINING, far, reserved=1), NOW) == d.NOTHING
    assert decide(job(S.RUNNING), working(), fleet(HostState.DRAINING), NOW) == d.NOTHING
    assert decide(job(S.RUNNING, local=True, home="a"), working(), fleet(HostState.DRAINING, far), NOW) == d.NOTHING


def test_a_stop_is_forced_and_then_ends_although_nobody_answers() -> None:
    stop = StopRequest(mode=StopMode.GRACEFUL, timeout_s=10)
    asked = job(S.RUNNING, D.STOPPED, stop=stop)
    assert decide(asked, working(), fleet(), NOW) == d.Decision(
        run=d.RunChange(desired="STOPPED", timeout_s=10), job=d.enter(S.STOPPING, 40)
    )
    late = replace(asked, state=S.STOPPING, deadline=NOW)
    forced = decide(late, working(desired="STOPPED"), fleet(), NOW)
    assert forced.run == FORCE
    ended = decide(late, working(desired="STOPPED", stop_mode=StopMode.FORCE), fleet(), NOW)
    assert ended.run == d.ABSENT
    assert moved(ended) is S.STOPPED


def test_force_after_graceful_is_passed_on_at_once() -> None:
    asked = job(S.STOPPING, D.STOPPED, stop=StopRequest(mode=StopMode.FORCE), deadline=NOW + timedelta(seconds=50))
    assert decide(asked, working(desired="STOPPED"), fleet(), NOW).run == FORCE


def test_a_stop_with_a_savepoint_waits_for_it_but_not_for_ever() -> None:
    asked = job(S.STOPPING, D.STOPPED, stop=StopRequest(mode=StopMode.CHECKPOINT), deadline=NOW + timedelta(seconds=9))
    over = run(desired="STOPPED", state="EXITED", driver_state="STOPPED", exit_code=0, ended=True)
    assert decide(asked, over, fleet(), NOW).job.savepoint == "take"
    saving = replace(asked, savepoint="IN_PROGRESS")
    assert decide(saving, over, fleet(), NOW) == d.NOTHING
    late = decide(saving, over, fleet(), NOW + timedelta(seconds=9))
    assert (late.job.savepoint, moved(late)) == ("give-up", S.STOPPED)
    assert moved(decide(replace(asked, savepoint="COMPLETED"), over, fleet(), NOW)) is S.STOPPED
    lost = decide(saving, over, fleet(HostState.LOST), NOW)
    assert (lost.job.savepoint, moved(lost)) == ("give-up", S.STOPPED)
    killed = replace(over, exit_code=-9)
    assert moved(decide(asked, killed, fleet(), NOW)) is S.STOPPED


def test_a_job_that_finishes_while_it_is_stopped_has_finished_and_with_a_restart_starts() -> None:
    over = run(desired="STOPPED", state="EXITED", driver_state="FINISHED", exit_code=0, ended=True)
    assert moved(decide(job(S.STOPPING, D.STOPPED), over, fleet(), NOW)) is S.FINISHED
    assert moved(decide(job(S.STOPPING, restart=True), over, fleet(), NOW)) is S.STARTING


def test_a_cancelled_job_is_cancelled_although_its_host_is_silent() -> None:
    asked = job(S.RUNNING, D.CANCELED)
    assert decide(asked, working(), fleet(), NOW).run == FORCE
    waiting = replace(asked, state=S.CANCELLING, deadline=NOW + timedelta(seconds=60))
    assert decide(waiting, working(desired="STOPPED"), fleet(), NOW) == d.NOTHING
    lost = decide(waiting, working(desired="STOPPED"), fleet(HostState.LOST), NOW)
    assert lost == d.Decision(run=d.LOST, job=d.enter(S.CANCELED))
    gone = decide(waiting, working(desired="STOPPED"), fleet(), NOW + timedelta(seconds=60))
    assert gone == d.Decision(run=d.ABSENT, job=d.enter(S.CANCELED))


def test_a_failed_job_waits_for_a_new_request() -> None:
    assert decide(job(S.FAILED), None, fleet(), NOW) == d.NOTHING
    assert decide(job(S.FAILED, restart=True), None, fleet(), NOW) == d.Decision(job=d.enter(S.STARTING))
    failure = Failure(error="x", what="y")
    stopped = decide(job(S.FAILED, D.STOPPED, failure=failure), None, fleet(), NOW)
    assert stopped == d.Decision(job=d.enter(S.STOPPED, failure=failure))


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind.outage], ids=lambda kind: kind.slug)
@pytest.mark.parametrize("state", [S.STARTING, S.RECOVERING])
def test_a_driver_that_waits_for_a_dependency_has_no_deadline_and_then_a_new_one(
    state: S, kind: type[ClonosError]
) -> None:
    away = Failure(error=kind.slug, what="It does not answer.")
    late = NOW + timedelta(hours=1)
    waiting = run(state="STARTING", driver_state="WAITING", claimed=True, failure=away)
    before = job(state, deadline=NOW + timedelta(seconds=60))
    assert decide(before, waiting, fleet(), NOW) == d.Decision(job=d.stay(None, away))
    outage = job(state, deadline=None, failure=away)
    assert decide(outage, waiting, fleet(), late) == d.NOTHING, "however long it lasts"
    claiming = run(state="STARTING", driver_state="CLAIMING", claimed=True)
    again = decide(outage, claiming, fleet(), late).job.state
    assert again is not None
    assert again.to is None
    assert again.within_s is not None
    renewed = job(state, deadline=late + timedelta(seconds=again.within_s))
    assert decide(renewed, claiming, fleet(), late + timedelta(seconds=1)) == d.NOTHING
    assert moved(decide(renewed, claiming, fleet(), late + timedelta(seconds=again.within_s))) is S.FAILED


def test_a_start_from_a_point_that_is_gone_fails_before_anything_runs() -> None:
    writes = decide(job(S.STARTING, start_from=True, start_error="Savepoint s is FAILED."), None, fleet(), NOW)
    assert moved(writes) is S.FAILED
    assert writes.run.place is None


def test_the_first_claim_uses_up_the_point_and_says_where_the_checkpoint_is() -> None:
    claimed = run(state="STARTING", driver_state="RECONCILING", claimed=True)
    assert decide(job(S.STARTING, start_from=True), claimed, fleet(), NOW) == d.Decision(job=CLAIMED)
    assert decide(job(S.STARTING, resolutions=True), claimed, fleet(), NOW) == d.Decision(job=CLAIMED)
    both = decide(job(S.STARTING, local=True), working(), fleet(), NOW)
    assert both == d.Decision(job=replace(d.enter(S.RUNNING), first_claim=True))
    assert decide(job(S.STARTING, local=True, home="a"), working(), fleet(), NOW) == d.Decision(job=d.enter(S.RUNNING))


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
    assert writes.run == d.LOST
    assert (moved(writes), shown(writes)) == (S.STOPPED, "host-lost")


@pytest.mark.parametrize("host", [HostState.READY, HostState.LOST])
@pytest.mark.parametrize("standbys", [(), (StandbyFacts(run="s", host="b", state="READY"),)])
def test_a_driver_that_its_agent_stopped_did_not_crash(host: HostState, standbys: tuple[StandbyFacts, ...]) -> None:
    stopped = Failure(error="stopped-with-agent", what="Its agent stopped.", domain="environment", retry=True)
    other = HostFacts(id="b", name="b", slots=2)
    ended = run(state="EXITED", driver_state="STOPPED", claimed=True, exit_code=0, failure=stopped)
    writes = decide(job(S.RUNNING, standbys=standbys), ended, fleet(host, other), NOW)
    assert writes.recovery == d.BeginRecovery("shutdown", stopped)
    assert moved(writes) is S.RECOVERING
    if standbys:  # its last reports arrived before it had exited
        stopping = run(state="STOPPING", driver_state="RUNNING", claimed=True, failure=stopped)
        silent = Fleet([HostFacts(id="a", name="a", used=1, unresponsive=True), other])
        taken = decide(job(S.RUNNING, standbys=standbys), stopping, silent, NOW)
        assert taken.recovery == d.BeginRecovery("shutdown", stopped)
    later = working(failure=stopped)  # the report of its next attempt
    lost = decide(job(S.RUNNING), later, fleet(HostState.LOST), NOW).recovery
    assert lost is not None
    assert lost.cause == "host-lost"


def test_a_restart_stops_what_runs_and_is_heeded_where_nothing_does() -> None:
    asked = job(S.RUNNING, restart=True, stop=StopRequest(timeout_s=5))
    assert decide(asked, working(), fleet(), NOW) == d.Decision(
        run=d.RunChange(desired="STOPPED", timeout_s=5), job=d.enter(S.STOPPING, 35)
    )
    acknowledged = decide(job(S.RECOVERING, restart=True), run(state="LOST", desired="ABSENT"), fleet(), NOW)
    assert acknowledged == d.Decision(job=d.JobChange(restart_acknowledged=True))


def test_a_job_that_works_on_a_host_that_is_well_is_left_alone() -> None:
    better = HostFacts(id="b", name="b", slots=100)
    assert decide(job(S.RUNNING), working(), fleet(HostState.READY, better), NOW) == d.NOTHING


@pytest.mark.parametrize(
    ("made", "simple"),
    [
        (d.Decision(job=d.enter(S.STARTING), run=d.RunChange(place=Placement("a", "free"))), True),
        (d.Decision(job=CLAIMED, run=d.RunChange(closed=True)), True),
        (d.Decision(run=d.ABSENT, job=d.stay(None)), True),
        (d.Decision(run=d.LOST), False),
        (d.Decision(run=d.RunChange(next=NextRun(version=2))), False),
        (d.Decision(job=d.JobChange(savepoint="take")), False),
        (d.Decision(job=d.JobChange(driver="s")), False),
        (d.Decision(standbys=d.StandbyChange(promote="s")), False),
        (d.Decision(recovery=d.BeginRecovery("crash")), False),
        (d.Decision(move=d.MoveChange()), False),
    ],
)
def test_only_decisions_about_a_job_and_its_run_share_a_transaction(made: d.Decision, simple: bool) -> None:
    assert made.is_simple == simple
