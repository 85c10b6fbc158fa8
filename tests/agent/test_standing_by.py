"""An agent keeps a standby, and has it take over when it is ordered to."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from agent.api import GUARDED_S, HEARTBEAT_S, FakeApi
from agent.hosts import ProcessAgent, ThreadAgent, order
from agent.test_supervising import reported
from clonos.resources.hosts import RestartOrder, RunOrder
from clonos.spec import Standbys
from observe import eventually

Host = Callable[..., ThreadAgent]
StartProcess = Callable[..., ProcessAgent]

STANDS_BY: Final = b"""
from clonos.standby.orders import Orders

if "--standby" in sys.argv:
    time.sleep(PAUSE)
    orders = Orders(Path(sys.argv[sys.argv.index("--standby") + 1]))
    emit("standby", state="WARMING")
    emit("standby", state="READY")
    while not orders.promoted(0.05):
        pass
    emit("standby", state="PROMOTING")
    orders.close()
until_stopped()
"""


def test_it_waits_and_takes_over_in_the_same_process(api: FakeApi, host: Host, run: str) -> None:
    code = api.upload(STANDS_BY.replace(b"PAUSE", b"0"))
    api.order(order(run, code, standby=True))
    host()
    waiting = reported(api, run, "RUNNING", driver_state="READY")
    assert waiting.generation == 0
    api.order(order(run, code, attempt_base=3))
    drives = reported(api, run, "RUNNING", driver_state="RUNNING", generation=1)
    assert (drives.pid, drives.attempts) == (waiting.pid, 4)
    assert drives.pid is not None
    assert os.getpriority(os.PRIO_PROCESS, drives.pid) == 0, "at full speed"

    os.kill(drives.pid, signal.SIGKILL)
    again = reported(api, run, "RUNNING", attempts=5)
    assert again.driver_state in (None, "RUNNING"), "not as a standby any more"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can raise a priority again")
def test_it_waits_at_a_lower_priority(api: FakeApi, host: Host, run: str) -> None:
    api.order(order(run, api.upload(STANDS_BY.replace(b"PAUSE", b"0")), standby=True))
    host()
    pid = reported(api, run, "RUNNING", driver_state="READY").pid
    assert pid is not None
    assert os.getpriority(os.PRIO_PROCESS, pid) == 10


FALLS: Final = STANDS_BY.replace(b"PAUSE", b"0").replace(b"until_stopped()", b"running(); os.kill(os.getpid(), 9)")


@pytest.mark.parametrize("before", [1, 4])
def test_drivers_that_fall_are_counted_from_standby_to_standby(api: FakeApi, host: Host, run: str, before: int) -> None:
    code, policy = api.upload(FALLS), RestartOrder(attempts=4, backoff_ms=1, healthy_s=0.5)
    api.order(order(run, code, standby=True, restart=policy))
    host()
    waiting = reported(api, run, "RUNNING", driver_state="READY")
    assert waiting.started_at is not None
    until = waiting.started_at.timestamp() + 1.0
    eventually(lambda: time.time() > until, "it has waited for longer than makes a driver healthy")
    assert waiting.in_row == 0
    api.order(order(run, code, attempt_base=before, restart=policy.model_copy(update={"failed_before": before})))
    last = reported(api, run, "EXITED", final=True)
    assert last.in_row == 5
    assert last.attempts == before + (5 - before), "it was not tried more often than without standbys"
    assert last.failure is not None
    assert last.failure.error == "restarts-exhausted"
    told = [one.in_row for one in api.history[run]]
    assert told == sorted(told)
    assert before + 1 in told, "also right when it falls: another standby may take over then"


def test_what_fell_long_ago_does_not_count_where_it_goes_on(api: FakeApi, host: Host, run: str) -> None:
    falls = b'running()\nif int(os.environ["CLONOS_ATTEMPT"]) < 3:\n    os.kill(os.getpid(), 9)\nuntil_stopped()'
    api.order(order(run, api.upload(falls), restart=RestartOrder(attempts=4, backoff_ms=1, healthy_s=1.0)))
    host()
    reported(api, run, "RUNNING", attempts=3)
    eventually(lambda: api.reports[run].in_row == 0, "it has worked for long enough", timeout_s=10)
    assert 2 in [one.in_row for one in api.history[run]]


def test_who_is_not_listening_yet_is_told_as_soon_as_it_does(api: FakeApi, host: Host, run: str) -> None:
    code = api.upload(STANDS_BY.replace(b"PAUSE", b"1"))
    api.order(order(run, code, standby=True))
    host()
    starting = reported(api, run, "STARTING")
    api.order(order(run, code))
    assert reported(api, run, "RUNNING", driver_state="RUNNING").pid == starting.pid


def test_another_agent_has_it_take_over(api: FakeApi, host_process: StartProcess, run: str) -> None:
    code = api.upload(STANDS_BY.replace(b"PAUSE", b"0"))
    api.order(order(run, code, standby=True))
    first = host_process()
    pid = reported(api, run, "RUNNING", driver_state="READY").pid
    first.kill()
    api.reports.clear()
    api.order(order(run, code))
    host_process()
    assert reported(api, run, "RUNNING", driver_state="RUNNING", generation=1).pid == pid


def test_a_standby_that_dies_is_started_again_as_one(api: FakeApi, host: Host, run: str) -> None:
    api.order(order(run, api.upload(STANDS_BY.replace(b"PAUSE", b"0")), standby=True))
    host()
    pid = reported(api, run, "RUNNING", driver_state="READY").pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert reported(api, run, "RUNNING", driver_state="READY", attempts=2).pid != pid


def test_a_driver_yields_to_a_standby_but_not_for_ever(api: FakeApi, host: Host, run: str) -> None:
    code = api.upload(b"until_stopped()")
    api.order(order(run, code, restart=RestartOrder(backoff_ms=1, yield_s=1.5)))
    host()
    pid = reported(api, run, "RUNNING").pid
    assert pid is not None
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    reported(api, run, "EXITED", exit_code=-9, final=False)
    reported(api, run, "RUNNING", attempts=2)
    assert time.monotonic() - killed > 1.4


@pytest.mark.parametrize(
    "guarded", [{"standby": True}, {"restart": RestartOrder(yield_s=3.0)}], ids=["standby", "driver"]
)
def test_a_host_is_heard_of_more_often_where_somebody_would_take_over(
    api: FakeApi, host: Host, run: str, guarded: dict[str, Any]
) -> None:
    code = api.upload(STANDS_BY.replace(b"PAUSE", b"0"))
    api.order(order(run, code))
    agent = host()
    reported(api, run, "RUNNING")
    assert set(api.beats_s) == {HEARTBEAT_S}
    api.order(order(run, code, **guarded))
    eventually(lambda: api.beats_s[-3:] == [GUARDED_S] * 3, "it promises more heartbeats")
    agent.stop()
    assert api.beats_s[-1] == HEARTBEAT_S, "before it goes it says that the next one takes a while"


@pytest.mark.parametrize("accept", [True, False])
def test_a_version_that_the_job_goes_back_to_replays_what_another_left(
    api: FakeApi, host: Host, run: str, accept: bool
) -> None:
    told = b'running(7 if "--accept-new-code" in sys.argv else 1)\nsignal.pause()\n'
    api.order(order(run, api.upload(told), accept_code=accept))
    host()
    assert reported(api, run, "RUNNING", driver_state="RUNNING").generation == (7 if accept else 1)


def test_that_its_last_epoch_is_out_is_told_before_its_process_has_ended(api: FakeApi, host: Host, run: str) -> None:
    """A standby of another version waits for that alone."""
    code = api.upload(
        b"""
signal.signal(signal.SIGTERM, lambda *_: emit("state", state="STOPPED"))
running()
while True:
    time.sleep(0.05)
"""
    )
    api.order(order(run, code))
    host()
    pid = reported(api, run, "RUNNING", driver_state="RUNNING").pid
    api.order(order(run, code, goal="STOP", stop_timeout_s=60))
    assert reported(api, run, "STOPPING", driver_state="STOPPED").pid == pid
    api.order(order(run, code, goal="GONE"))
    reported(api, run, "EXITED", final=True)


ALONE: Final = b"""
import threading
from clonos.standby.orders import Orders

def stalls():
    while STALLS:
        emit("primary-stalled", query="q", seconds=9.0)
        time.sleep(0.2)

if "--standby" in sys.argv:
    orders = Orders(Path(sys.argv[sys.argv.index("--standby") + 1]))
    emit("standby", state="WARMING")
    emit("standby", state="READY")
    threading.Thread(target=stalls, daemon=True).start()
    while not orders.promoted(0.05):
        pass
    emit("standby", state="PROMOTING")
    orders.close()
until_stopped()
"""


def alone(api: FakeApi, run: str, *, stalls: bool, after_s: float) -> RunOrder:
    found = order(run, api.upload(ALONE.replace(b"STALLS", str(stalls).encode())), standby=True)
    spec = found.spec.spec.model_copy(update={"standby": Standbys(replicas=1, alone_after_s=after_s)})
    return found.model_copy(update={"spec": found.spec.model_copy(update={"spec": spec})})


def test_a_standby_helps_itself_while_nobody_is_there_to_tell_it(
    api: FakeApi, host: Host, run: str, tmp_path: Path
) -> None:
    api.order(alone(api, run, stalls=True, after_s=5.0))
    host()
    waiting = reported(api, run, "RUNNING", driver_state="READY")
    told = len(api.events[run])
    eventually(lambda: len(api.events[run]) > told + 10, "as long as the control plane is there, it is not its to do")
    reported(api, run, "RUNNING", driver_state="READY")
    api.stop()
    events = tmp_path / "agent" / "host-1" / "runs" / run / "events.jsonl"
    eventually(lambda: '"RUNNING"' in events.read_text(), "it drives", timeout_s=15)
    api.start()
    drives = reported(api, run, "RUNNING", driver_state="RUNNING", generation=1)
    assert drives.pid == waiting.pid
    # The control plane says so, too, and nothing changes.
    api.order(api.work.runs[0].model_copy(update={"standby": False}))
    heard = api.heartbeats
    eventually(lambda: api.heartbeats > heard + 5, "it has obeyed")
    assert reported(api, run, "RUNNING", driver_state="RUNNING", generation=1).attempts == 1


@pytest.mark.parametrize(("stalls", "after_s"), [(False, 5.0), (True, 0.0)], ids=["it works", "it is not to"])
def test_a_standby_leaves_a_driver_alone(
    api: FakeApi, host: Host, run: str, tmp_path: Path, stalls: bool, after_s: float
) -> None:
    api.order(alone(api, run, stalls=stalls, after_s=after_s))
    host()
    reported(api, run, "RUNNING", driver_state="READY")
    api.stop()
    until = time.monotonic() + 3.0  # three leases
    eventually(lambda: time.monotonic() > until, "the control plane is away")
    api.start()
    reported(api, run, "RUNNING", driver_state="READY")
