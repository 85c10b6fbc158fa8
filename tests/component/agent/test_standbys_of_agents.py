"""An agent runs a standby and promotes it when its work requires that."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from clonos.agent import heartbeat_pace, restart_policy, run_attempt, run_supervisor
from clonos.agent.priority import Priority
from clonos.jobs.spec import Standbys
from clonos.resources.hosts import RunRestartPolicy, RunSpec
from clonos.testing.harness import eventually
from component.agent.api import GUARDED_S, HEARTBEAT_S, FakeApi
from component.agent.hosts import ProcessAgent, ThreadAgent, run_spec
from component.agent.test_supervising import reported
from support.busy import slowdown

Host = Callable[..., ThreadAgent]
StartProcess = Callable[..., ProcessAgent]

STANDS_BY: Final = b"""
from clonos.standby.promotion import PromotionMailbox

if "--standby" in sys.argv:
    time.sleep(PAUSE)
    mailbox = PromotionMailbox(Path(sys.argv[sys.argv.index("--standby") + 1]))
    emit("standby", state="WARMING")
    emit("standby", state="READY")
    while not mailbox.promoted(0.05):
        pass
    emit("standby", state="PROMOTING")
    mailbox.close()
until_stopped()
"""


def test_standby_waits_and_becomes_the_driver(api: FakeApi, host: Host, run: str) -> None:
    code = api.upload(STANDS_BY.replace(b"PAUSE", b"0"))
    api.assign(run_spec(run, code, standby=True))
    host()
    waiting = reported(api, run, "RUNNING", driver_state="READY")
    assert waiting.generation == 0
    api.assign(run_spec(run, code, earlier_attempts=3))
    drives = reported(api, run, "RUNNING", driver_state="RUNNING", generation=1)
    assert (drives.pid, drives.attempts) == (waiting.pid, 4)
    assert drives.pid is not None
    os.kill(drives.pid, signal.SIGKILL)
    again = reported(api, run, "RUNNING", attempts=5)
    assert again.driver_state in (None, "RUNNING"), "restarted as the driver"


def test_a_standby_that_has_waited_for_kafka_is_reported_as_ready(api: FakeApi, host: Host, run: str) -> None:
    waited = b'for state in ("WAITING", "STARTING"): emit("state", state=state)\n'
    begin = b'if "--standby" in sys.argv:'
    code = api.upload(STANDS_BY.replace(b"PAUSE", b"0").replace(begin, waited + begin))
    api.assign(run_spec(run, code, standby=True))
    host()
    waiting = reported(api, run, "RUNNING", driver_state="READY")
    api.assign(run_spec(run, code))
    assert reported(api, run, "RUNNING", driver_state="RUNNING", generation=1).pid == waiting.pid


def test_a_standby_that_fails_while_ready_is_not_reported_as_ready(api: FakeApi, host: Host, run: str) -> None:
    fails = b'emit("state", state="FAILED"); sys.exit(14)\n    while not mailbox'
    code = api.upload(STANDS_BY.replace(b"PAUSE", b"0").replace(b"while not mailbox", fails))
    api.assign(run_spec(run, code, standby=True))
    host()
    assert reported(api, run, "EXITED", final=True).driver_state == "FAILED"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can raise a priority again")
def test_priority_of_a_standby_that_warms_up_waits_and_takes_over(
    api: FakeApi, host: Host, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm = tmp_path / "warm"
    waits = f"while not Path({str(warm)!r}).exists(): time.sleep(0.05)"
    ready = b'emit("standby", state="READY")'
    code = api.upload(STANDS_BY.replace(b"PAUSE", b"0").replace(ready, waits.encode() + b"\n    " + ready))
    api.assign(run_spec(run, code, standby=True))
    host()
    reported(api, run, "STARTING", driver_state="WARMING")
    pid = eventually(lambda: api.reports[run].pid if run in api.reports else None, "it has a process")

    def nice() -> tuple[int, str]:
        """Of the process, and of its session if the kernel has groups."""
        group = Path(f"/proc/{pid}/autogroup")
        words = group.read_text().split() if group.exists() else []
        return os.getpriority(os.PRIO_PROCESS, pid), words[-1] if words else ""

    def has(expected: int) -> bool:
        own, group = nice()
        return own == expected and group in (str(int(expected)), "")

    before = api.heartbeats
    eventually(lambda: api.heartbeats > before + 10, "the agent has seen it warm up")
    assert has(Priority.DRIVER), f"it warms up: {nice()}"
    warm.touch()
    assert reported(api, run, "RUNNING", driver_state="READY").pid == pid
    eventually(lambda: has(Priority.WAITING), "it waits", details=lambda: str(nice()))
    monkeypatch.setattr(run_supervisor, "_TAKEOVER_S", 600.0)
    api.assign(run_spec(run, code))
    assert reported(api, run, "RUNNING", driver_state="RUNNING", generation=1).pid == pid
    eventually(lambda: has(Priority.TAKEOVER), "it takes over", details=lambda: str(nice()))
    monkeypatch.setattr(run_supervisor, "_TAKEOVER_S", 0.0)
    eventually(lambda: has(Priority.DRIVER), "the takeover is over", details=lambda: str(nice()))


@pytest.mark.parametrize("hangs", ["in its promotion", "before its mailbox is open"])
def test_a_standby_that_hangs_at_its_promotion_is_replaced(
    api: FakeApi, host: Host, run: str, monkeypatch: pytest.MonkeyPatch, hangs: str
) -> None:
    """It reports heartbeats, and never claims the log."""
    monkeypatch.setattr(run_attempt, "_CLAIM_S", 0.3)
    monkeypatch.setattr(run_supervisor, "_RECEIVE_S", 0.3)
    at = b'emit("standby", state="PROMOTING")' if hangs == "in its promotion" else b"mailbox = PromotionMailbox("
    code = STANDS_BY.replace(b"PAUSE", b"0").replace(at, b"while True: time.sleep(0.05)\n    " + at)
    if hangs != "in its promotion":
        code = code.replace(b"while True", b'emit("standby", state="WARMING")\n    while True', 1)
    api.assign(run_spec(run, api.upload(code), standby=True))
    host()
    state, driver_state = ("RUNNING", "READY") if hangs == "in its promotion" else ("STARTING", "WARMING")
    waiting = reported(api, run, state, driver_state=driver_state)
    api.assign(run_spec(run, api.upload(code), restart=RunRestartPolicy(attempts=4, initial_backoff_ms=1)))
    drives = reported(api, run, "RUNNING", attempts=2, driver_state="RUNNING")
    assert drives.pid != waiting.pid, "restarted as the driver"
    errors = [report.failure.error for report in api.history[run] if report.failure is not None]
    assert set(errors) == {"driver-unresponsive"}


def test_a_standby_without_a_first_event_is_replaced(
    api: FakeApi, host: Host, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The import of its job hangs."""
    monkeypatch.setattr(run_attempt, "_START_S", 0.5)
    code = b"import time\nwhile True: time.sleep(0.05)\n"
    api.assign(
        run_spec(run, api.upload(code), standby=True, restart=RunRestartPolicy(attempts=4, initial_backoff_ms=1))
    )
    host()
    eventually(lambda: any(report.attempts > 1 for report in api.history[run]), "another attempt starts")
    errors = {report.failure.error for report in api.history[run] if report.failure is not None}
    assert errors == {"driver-unresponsive"}


CRASHES: Final = STANDS_BY.replace(b"PAUSE", b"0").replace(b"until_stopped()", b"running(); os.kill(os.getpid(), 9)")


@pytest.mark.parametrize("before", [1, 4])
def test_failures_are_counted_across_standbys(
    api: FakeApi, host: Host, run: str, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, policy = api.upload(CRASHES), RunRestartPolicy(attempts=4, initial_backoff_ms=1, reset_after_s=3.0)
    api.assign(run_spec(run, code, standby=True, restart=policy))
    host()
    waiting = reported(api, run, "RUNNING", driver_state="READY")
    assert waiting.started_at is not None
    # The standby has waited for longer than reset_after_s; its restarts have not.
    monkeypatch.setattr(restart_policy, "_age_s", lambda since: 4.0 if since == waiting.started_at else 0.0)
    assert waiting.consecutive_failures == 0
    api.assign(
        run_spec(run, code, earlier_attempts=before, restart=policy.model_copy(update={"earlier_failures": before}))
    )
    last = reported(api, run, "EXITED", final=True)
    assert last.consecutive_failures == 5
    assert last.attempts == before + (5 - before), "the limit is the same as without standbys"
    assert last.failure is not None
    assert last.failure.error == "restarts-exhausted"
    counts = [report.consecutive_failures for report in api.history[run]]
    assert counts == sorted(counts)
    assert before + 1 in counts, "reported at the first failure, because another standby may take over"


def test_healthy_driver_resets_the_failure_count(
    api: FakeApi, host: Host, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    age_s = [0.0]
    monkeypatch.setattr(restart_policy, "_age_s", lambda _since: age_s[0])
    code = b'running()\nif int(os.environ["CLONOS_ATTEMPT"]) < 3:\n    os.kill(os.getpid(), 9)\nuntil_stopped()'
    api.assign(
        run_spec(run, api.upload(code), restart=RunRestartPolicy(attempts=4, initial_backoff_ms=1, reset_after_s=1.0))
    )
    host()
    reported(api, run, "RUNNING", attempts=3)
    age_s[0] = 2.0
    eventually(lambda: api.reports[run].consecutive_failures == 0, "the driver has run for reset_after_s", timeout_s=60)
    assert 2 in [report.consecutive_failures for report in api.history[run]]


def test_starting_standby_is_promoted_when_it_can_receive(api: FakeApi, host: Host, run: str) -> None:
    code = api.upload(STANDS_BY.replace(b"PAUSE", b"1"))
    api.assign(run_spec(run, code, standby=True))
    host()
    starting = reported(api, run, "STARTING")
    api.assign(run_spec(run, code))
    assert reported(api, run, "RUNNING", driver_state="RUNNING").pid == starting.pid


def test_next_agent_promotes_an_adopted_standby(api: FakeApi, host_process: StartProcess, run: str) -> None:
    code = api.upload(STANDS_BY.replace(b"PAUSE", b"0"))
    api.assign(run_spec(run, code, standby=True))
    first = host_process()
    pid = reported(api, run, "RUNNING", driver_state="READY").pid
    first.kill()
    api.reports.clear()
    api.assign(run_spec(run, code))
    host_process()
    assert reported(api, run, "RUNNING", driver_state="RUNNING", generation=1).pid == pid


def test_killed_standby_is_restarted_as_a_standby(api: FakeApi, host: Host, run: str) -> None:
    api.assign(run_spec(run, api.upload(STANDS_BY.replace(b"PAUSE", b"0")), standby=True))
    host()
    pid = reported(api, run, "RUNNING", driver_state="READY").pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert reported(api, run, "RUNNING", driver_state="READY", attempts=2).pid != pid


def test_restart_waits_for_a_takeover_for_a_limited_time(api: FakeApi, host: Host, run: str) -> None:
    code = api.upload(b"until_stopped()")
    api.assign(run_spec(run, code, restart=RunRestartPolicy(initial_backoff_ms=1, takeover_wait_s=6.0)))
    host()
    pid = reported(api, run, "RUNNING").pid
    assert pid is not None
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    reported(api, run, "EXITED", exit_code=-9, final=False)
    reported(api, run, "RUNNING", attempts=2)
    assert time.monotonic() - killed > 1.4


@pytest.mark.parametrize(
    "guarded", [{"standby": True}, {"restart": RunRestartPolicy(takeover_wait_s=3.0)}], ids=["standby", "driver"]
)
def test_heartbeats_are_more_frequent_while_a_standby_could_take_over(
    api: FakeApi, host: Host, run: str, guarded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat_pace, "_LONGEST_S", 0.0)  # a late heartbeat would announce a longer interval
    monkeypatch.setattr("clonos.agent.agent._EXIT_TIMEOUT_S", 60.0)
    code = api.upload(STANDS_BY.replace(b"PAUSE", b"0"))
    api.assign(run_spec(run, code))
    agent = host()
    reported(api, run, "RUNNING")
    assert min(api.beats_s) == HEARTBEAT_S, "late heartbeats may announce longer intervals"
    api.assign(run_spec(run, code, **guarded))
    eventually(lambda: GUARDED_S <= api.beats_s[-1] < HEARTBEAT_S, "the agent announces the shorter interval")
    agent.stop()
    assert api.beats_s[-1] == HEARTBEAT_S, (
        "the last heartbeat announces the normal interval, so that the next agent has time to start"
    )


@pytest.mark.parametrize("accept", [True, False])
def test_previous_version_replays_the_epochs_of_another_version(
    api: FakeApi, host: Host, run: str, accept: bool
) -> None:
    code = b'running(7 if "--accept-new-code" in sys.argv else 1)\nsignal.pause()\n'
    api.assign(run_spec(run, api.upload(code), accept_new_code=accept))
    host()
    assert reported(api, run, "RUNNING", driver_state="RUNNING").generation == (7 if accept else 1)


def test_stopped_state_is_reported_before_the_process_exits(api: FakeApi, host: Host, run: str) -> None:
    """A standby of another version waits for this state only."""
    code = api.upload(
        b"""
signal.signal(signal.SIGTERM, lambda *_: emit("state", state="STOPPED"))
running()
while True:
    time.sleep(0.05)
"""
    )
    api.assign(run_spec(run, code))
    host()
    pid = reported(api, run, "RUNNING", driver_state="RUNNING").pid
    api.assign(run_spec(run, code, desired="STOPPED", stop_timeout_s=60))
    assert reported(api, run, "STOPPING", driver_state="STOPPED").pid == pid
    api.assign(run_spec(run, code, desired="ABSENT"))
    reported(api, run, "EXITED", final=True)


ISOLATED: Final = b"""
import threading
from clonos.standby.promotion import PromotionMailbox

def stalls():
    while STALLS:
        emit("primary-stalled", query="q", seconds=9.0)
        time.sleep(0.2)

if "--standby" in sys.argv:
    mailbox = PromotionMailbox(Path(sys.argv[sys.argv.index("--standby") + 1]))
    emit("standby", state="WARMING")
    emit("standby", state="READY")
    threading.Thread(target=stalls, daemon=True).start()
    while not mailbox.promoted(0.05):
        pass
    emit("standby", state="PROMOTING")
    mailbox.close()
until_stopped()
"""


def self_promoting(api: FakeApi, run: str, *, stalls: bool, after_s: float) -> RunSpec:
    base = run_spec(run, api.upload(ISOLATED.replace(b"STALLS", str(stalls).encode())), standby=True)
    spec = base.spec.spec.model_copy(update={"standby": Standbys(replicas=1, self_promote_after_s=after_s)})
    return base.model_copy(update={"spec": base.spec.model_copy(update={"spec": spec})})


def test_isolated_standby_promotes_itself(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    api.lease_s = 4.0 * slowdown()  # a busy machine does not isolate the agent before the test does
    api.assign(self_promoting(api, run, stalls=True, after_s=5.0))
    host()
    waiting = reported(api, run, "RUNNING", driver_state="READY")
    count = len(api.events[run])
    eventually(lambda: len(api.events[run]) > count + 10, "the standby reports the stalls, and waits")
    reported(api, run, "RUNNING", driver_state="READY")
    api.stop()
    events = tmp_path / "agent" / "host-1" / "runs" / run / "events.jsonl"
    eventually(lambda: '"RUNNING"' in events.read_text(), "the standby becomes the driver", timeout_s=60)
    api.start()
    drives = reported(api, run, "RUNNING", driver_state="RUNNING", generation=1)
    assert drives.pid == waiting.pid
    # The control plane promotes it, too, and nothing changes.
    api.assign(api.work.runs[0].model_copy(update={"standby": False}))
    count = api.heartbeats
    eventually(lambda: api.heartbeats > count + 5, "the agent has applied the work")
    assert reported(api, run, "RUNNING", driver_state="RUNNING", generation=1).attempts == 1


@pytest.mark.parametrize(("stalls", "after_s"), [(False, 5.0), (True, 0.0)], ids=["driver works", "disabled"])
def test_standby_does_not_promote_itself(api: FakeApi, host: Host, run: str, stalls: bool, after_s: float) -> None:
    api.assign(self_promoting(api, run, stalls=stalls, after_s=after_s))
    host()
    reported(api, run, "RUNNING", driver_state="READY")
    api.stop()
    until = time.monotonic() + 3.0  # three leases
    eventually(lambda: time.monotonic() > until, "the control plane is unavailable")
    api.start()
    reported(api, run, "RUNNING", driver_state="READY")
