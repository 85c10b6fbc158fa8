"""Drivers outlive their agent, and the next agent adopts them, with real agent processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

from clonos.testing.harness import eventually
from component.agent.api import FakeApi
from component.agent.hosts import ProcessAgent, ThreadAgent, alive, processes_of, run_spec
from component.agent.test_supervising import reported
from support.busy import within

StartProcess = Callable[..., ProcessAgent]
Host = Callable[..., ThreadAgent]


def record_of(home: Path, run: str) -> Path:
    return home / "agent" / "host-1" / "runs" / run / "driver.json"


def test_next_agent_adopts_the_drivers_of_a_killed_agent(api: FakeApi, host_process: StartProcess, run: str) -> None:
    code = api.upload(b"until_stopped()")
    api.assign(run_spec(run, code))
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

    os.kill(pid, signal.SIGKILL)  # not a child of this agent, which still detects the exit
    again = reported(api, run, "RUNNING", attempts=2)
    assert again.failure is not None
    assert again.failure.error == "driver-crashed"
    second.kill()
    api.reports.clear()

    host_process()
    reported(api, run, "RUNNING", attempts=2, pid=again.pid)
    api.assign(run_spec(run, code, "STOPPED"))
    stopped = reported(api, run, "EXITED", final=True)
    assert (stopped.exit_code, stopped.failure) == (0, None), "read from its events"


def test_outcome_of_a_driver_without_agent_is_read_from_its_events(
    api: FakeApi, host_process: StartProcess, run: str
) -> None:
    for name in ("go-finish", "go-fail"):
        wait = f"running()\nwhile not Path('../{name}').exists(): time.sleep(0.01)\n"
        end = "end('FINISHED')" if name == "go-finish" else "fail('checkpoint-damaged', 53, 'cut short')"
        api.assign(run_spec(run + name, api.upload((wait + end).encode())), *api.work.runs)
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


def test_agent_finds_a_driver_without_a_recorded_process_id(
    api: FakeApi, host_process: StartProcess, run: str, tmp_path: Path
) -> None:
    api.assign(run_spec(run, api.upload(b"until_stopped()")))
    first = host_process()
    pid = reported(api, run, "RUNNING").pid
    first.kill()
    api.reports.clear()
    record = json.loads(record_of(tmp_path, run).read_text())
    record_of(tmp_path, run).write_text(json.dumps({**record, "pid": None, "identity": ""}))
    host_process()
    assert reported(api, run, "RUNNING").pid == pid
    assert len(processes_of(run)) == 1


def test_process_that_reuses_the_id_is_not_adopted(
    api: FakeApi, host_process: StartProcess, run: str, tmp_path: Path
) -> None:
    api.assign(run_spec(run, api.upload(b"until_stopped()")))
    first = host_process()
    pid = reported(api, run, "RUNNING").pid
    first.kill()
    os.kill(pid or 0, signal.SIGKILL)
    eventually(lambda: not alive(pid or 0), "the driver has exited")
    record = json.loads(record_of(tmp_path, run).read_text())
    record_of(tmp_path, run).write_text(json.dumps({**record, "pid": os.getpid()}))
    api.reports.clear()
    host_process()
    assert reported(api, run, "RUNNING", attempts=2).pid != os.getpid()


def test_sigterm_stops_the_agent_but_not_its_drivers(api: FakeApi, host_process: StartProcess, run: str) -> None:
    api.assign(run_spec(run, api.upload(b"until_stopped()")))
    first = host_process()
    pid = reported(api, run, "RUNNING").pid
    with within(15.0):
        assert first.end() == 0
    assert pid is not None
    assert alive(pid)
    assert api.left == []


def test_sigterm_while_the_control_plane_is_unavailable(api: FakeApi, host_process: StartProcess, run: str) -> None:
    api.assign(run_spec(run, api.upload(b"until_stopped()")))
    first = host_process()
    reported(api, run, "RUNNING")
    api.stop()
    with within(15.0):
        assert first.end() == 0


def test_agent_with_stop_drivers_stops_its_drivers(api: FakeApi, host_process: StartProcess, run: str) -> None:
    stubborn = f"{run}x"
    ignores = b"signal.signal(signal.SIGTERM, signal.SIG_IGN); running(); time.sleep(600)"
    api.assign(run_spec(run, api.upload(b"until_stopped()")), run_spec(stubborn, api.upload(ignores)))
    first = host_process(stop_drivers=True, stop_grace_s=0.5)
    pids = [reported(api, name, "RUNNING").pid for name in (run, stubborn)]
    assert first.end() == 0
    assert not any(alive(pid) for pid in pids if pid)
    assert processes_of(run) == processes_of(stubborn) == []
    assert api.left == ["id-host-1"]
    for report in (api.reports[run], api.reports[stubborn]):
        assert not report.final, "the work still contains the run"
        assert report.failure is not None
        assert report.failure.error == "stopped-with-agent"
        states = [(each.state, each.failure and each.failure.error) for each in api.history[report.run]]
        assert ("STOPPING", "stopped-with-agent") in states, "heartbeats continue until the drivers have exited"
    host_process()
    reported(api, run, "RUNNING", attempts=2)
    api.assign()
    eventually(lambda: not api.reports, "both runs are removed")


def test_newer_agent_replaces_an_agent_with_the_same_name(api: FakeApi, host_process: StartProcess, run: str) -> None:
    api.assign(run_spec(run, api.upload(b"until_stopped()")))
    older = host_process()
    pid = reported(api, run, "RUNNING").pid
    newer = host_process()
    assert older.process.wait(60) == 47
    eventually(lambda: len(api.registered) == 2, "the newer one registers")
    api.reports.clear()
    assert reported(api, run, "RUNNING").pid == pid
    assert newer.process.poll() is None
    assert len(api.registered) == 2, "the older agent does not register again"


def test_agent_starts_from_stored_work_while_the_control_plane_is_unavailable(
    api: FakeApi, host_process: StartProcess, run: str
) -> None:
    api.assign(run_spec(run, api.upload(b"until_stopped()")))
    first = host_process()
    pid = reported(api, run, "RUNNING").pid
    first.kill()
    api.stop()
    api.reports.clear()
    os.kill(pid or 0, signal.SIGKILL)
    host_process()
    eventually(lambda: [other for other in processes_of(run) if other != pid], "the driver is restarted")
    api.start()
    report = reported(api, run, "RUNNING", attempts=2)
    assert report.pid != pid


def test_agent_of_a_removed_host_kills_its_drivers_and_exits(
    api: FakeApi, host_process: StartProcess, run: str, tmp_path: Path
) -> None:
    api.assign(run_spec(run, api.upload(b"until_stopped()")))
    agent = host_process()
    reported(api, run, "RUNNING")
    api.removed.add("id-host-1")
    assert agent.process.wait(60) == 0
    assert processes_of(run) == []
    assert list((tmp_path / "agent" / "host-1" / "runs").iterdir()) == []
    assert not (tmp_path / "agent" / "host-1" / "work.json").exists()


def test_unknown_agent_registers_again(api: FakeApi, host: Host, run: str) -> None:
    api.assign(run_spec(run, api.upload(b"until_stopped()")))
    host()
    pid = reported(api, run, "RUNNING").pid
    api.instances.clear()
    eventually(lambda: len(api.registered) == 2, "the agent registers again")
    api.reports.clear()
    assert reported(api, run, "RUNNING").pid == pid
