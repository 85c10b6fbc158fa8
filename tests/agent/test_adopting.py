"""Drivers outlive their agent, and the next one goes on with them: real agents, killed and ended."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from agent.api import FakeApi
from agent.hosts import ProcessAgent, ThreadAgent, alive, order, processes_of
from agent.test_supervising import reported
from observe import eventually

StartProcess = Callable[..., ProcessAgent]
Host = Callable[..., ThreadAgent]


def record_of(home: Path, run: str) -> Path:
    return home / "agent" / "host-1" / "runs" / run / "driver.json"


def test_a_killed_agent_leaves_its_drivers_and_the_next_one_adopts_them(
    api: FakeApi, host_process: StartProcess, run: str
) -> None:
    code = api.upload(b"until_stopped()")
    api.order(order(run, code))
    host_process().kill()
    first = host_process()
    pid = reported(api, run, "RUNNING").pid
    assert pid
    first.kill()
    api.reports.clear()
    assert alive(pid)

    second = host_process()
    adopted = reported(api, run, "RUNNING", driver_state="RUNNING", generation=1)
    assert (adopted.pid, adopted.attempts) == (pid, 1)

    os.kill(pid, signal.SIGKILL)  # no child of this agent, and seen all the same
    again = reported(api, run, "RUNNING", attempts=2)
    assert again.failure is not None
    assert again.failure.error == "driver-died"
    second.kill()
    api.reports.clear()

    host_process()
    reported(api, run, "RUNNING", attempts=2, pid=again.pid)
    api.order(order(run, code, "STOP"))
    stopped = reported(api, run, "EXITED", final=True)
    assert (stopped.exit_code, stopped.failure) == (0, None), "as its events say"


def test_what_ended_meanwhile_is_judged_by_what_it_told(api: FakeApi, host_process: StartProcess, run: str) -> None:
    for name in ("go-finish", "go-fail"):
        wait = f"running()\nwhile not Path('../{name}').exists(): time.sleep(0.01)\n"
        end = "end('FINISHED')" if name == "go-finish" else "fail('checkpoint-damaged', 53, 'cut short')"
        api.order(order(run + name, api.upload((wait + end).encode())), *api.work.runs)
    first = host_process()
    pids = [reported(api, run + name, "RUNNING").pid for name in ("go-finish", "go-fail")]
    home = Path(api_home(first))
    first.kill()
    for name in ("go-finish", "go-fail"):
        (record_of(home, run + name).parent / name).touch()
    eventually(lambda: not any(alive(pid) for pid in pids if pid), "both ended")
    api.reports.clear()

    host_process()
    finished = reported(api, run + "go-finish", "EXITED", final=True)
    assert (finished.exit_code, finished.failure, finished.attempts) == (0, None, 1)
    failed = reported(api, run + "go-fail", "EXITED", final=True)
    assert (failed.exit_code, failed.attempts) == (53, 1)
    assert failed.failure is not None
    assert (failed.failure.error, failed.failure.domain, failed.failure.what) == (
        "checkpoint-damaged",
        "consistency",
        "cut short",
    )


def api_home(agent: ProcessAgent) -> str:
    home: str = json.loads(agent.process.args[2])["home"]  # type: ignore[index, arg-type]
    return home


def test_an_agent_that_died_before_it_noted_the_driver_finds_it(
    api: FakeApi, host_process: StartProcess, run: str, tmp_path: Path
) -> None:
    api.order(order(run, api.upload(b"until_stopped()")))
    first = host_process()
    pid = reported(api, run, "RUNNING").pid
    first.kill()
    api.reports.clear()
    noted = json.loads(record_of(tmp_path, run).read_text())
    record_of(tmp_path, run).write_text(json.dumps({**noted, "pid": None, "identity": ""}))
    host_process()
    assert reported(api, run, "RUNNING").pid == pid
    assert len(processes_of(run)) == 1


def test_a_process_that_has_the_number_now_is_let_be(
    api: FakeApi, host_process: StartProcess, run: str, tmp_path: Path
) -> None:
    api.order(order(run, api.upload(b"until_stopped()")))
    first = host_process()
    pid = reported(api, run, "RUNNING").pid
    first.kill()
    os.kill(pid or 0, signal.SIGKILL)
    eventually(lambda: not alive(pid or 0), "the driver is gone")
    noted = json.loads(record_of(tmp_path, run).read_text())
    record_of(tmp_path, run).write_text(json.dumps({**noted, "pid": os.getpid()}))
    api.reports.clear()
    host_process()
    assert reported(api, run, "RUNNING", attempts=2).pid != os.getpid()


def test_sigterm_ends_an_agent_at_once_and_its_drivers_go_on(
    api: FakeApi, host_process: StartProcess, run: str
) -> None:
    api.order(order(run, api.upload(b"until_stopped()")))
    first = host_process()
    pid = reported(api, run, "RUNNING").pid
    asked = time.monotonic()
    assert first.end() == 0
    assert time.monotonic() - asked < 3
    assert pid is not None
    assert alive(pid)
    assert api.left == []


def test_sigterm_with_the_control_plane_away(api: FakeApi, host_process: StartProcess, run: str) -> None:
    api.order(order(run, api.upload(b"until_stopped()")))
    first = host_process()
    reported(api, run, "RUNNING")
    api.stop()
    asked = time.monotonic()
    assert first.end() == 0
    assert time.monotonic() - asked < 3


def test_an_agent_that_is_to_stop_its_drivers_does(api: FakeApi, host_process: StartProcess, run: str) -> None:
    stubborn = f"{run}x"
    ignores = b"signal.signal(signal.SIGTERM, signal.SIG_IGN); running(); time.sleep(600)"
    api.order(order(run, api.upload(b"until_stopped()")), order(stubborn, api.upload(ignores)))
    first = host_process(stop_drivers=True, stop_grace_s=0.5)
    pids = [reported(api, one, "RUNNING").pid for one in (run, stubborn)]
    assert first.end() == 0
    assert not any(alive(pid) for pid in pids if pid)
    assert processes_of(run) == processes_of(stubborn) == []
    assert api.left == ["id-host-1"]
    assert not api.reports[run].final, "it is still ordered to run"
    host_process()
    reported(api, run, "RUNNING", attempts=2)
    api.order()
    eventually(lambda: not api.reports, "both are forgotten")


def test_of_two_agents_with_one_name_the_newer_one_stays(api: FakeApi, host_process: StartProcess, run: str) -> None:
    api.order(order(run, api.upload(b"until_stopped()")))
    older = host_process()
    pid = reported(api, run, "RUNNING").pid
    newer = host_process()
    assert older.process.wait(20) == 47
    eventually(lambda: len(api.registered) == 2, "the newer one registers")
    api.reports.clear()
    assert reported(api, run, "RUNNING").pid == pid
    assert newer.process.poll() is None
    assert len(api.registered) == 2, "they do not take turns"


def test_with_the_control_plane_away_an_agent_starts_from_its_last_orders(
    api: FakeApi, host_process: StartProcess, run: str
) -> None:
    api.order(order(run, api.upload(b"until_stopped()")))
    first = host_process()
    pid = reported(api, run, "RUNNING").pid
    first.kill()
    api.stop()
    api.reports.clear()
    os.kill(pid or 0, signal.SIGKILL)
    host_process()
    eventually(lambda: [one for one in processes_of(run) if one != pid], "the driver is started again")
    api.start()
    report = reported(api, run, "RUNNING", attempts=2)
    assert report.pid != pid


def test_a_removed_host_ends_its_drivers_and_itself(
    api: FakeApi, host_process: StartProcess, run: str, tmp_path: Path
) -> None:
    api.order(order(run, api.upload(b"until_stopped()")))
    agent = host_process()
    reported(api, run, "RUNNING")
    api.removed.add("id-host-1")
    assert agent.process.wait(20) == 0
    assert processes_of(run) == []
    assert list((tmp_path / "agent" / "host-1" / "runs").iterdir()) == []
    assert not (tmp_path / "agent" / "host-1" / "orders.json").exists()


def test_an_agent_that_was_forgotten_registers_again(api: FakeApi, host: Host, run: str) -> None:
    api.order(order(run, api.upload(b"until_stopped()")))
    host()
    pid = reported(api, run, "RUNNING").pid
    api.instances.clear()
    eventually(lambda: len(api.registered) == 2, "it registers again")
    api.reports.clear()
    assert reported(api, run, "RUNNING").pid == pid
