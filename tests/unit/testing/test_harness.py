"""The harness: process groups that are killed and paused, waits, and a reader's bookkeeping."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from clonos.errors import BrokerUnavailable, ClonosError
from clonos.settings import KafkaSettings
from clonos.testing.harness import (
    ChildProcess,
    CommittedReader,
    Deadline,
    ProcessGroup,
    Stack,
    eventually,
    platform,
    processes_of_home,
)
from clonos.testing.harness.processes import describe

# A leader that starts a child in a process group of its own (as PySpark's daemon is), which starts a
# grandchild in a session of its own; each writes its pid to the file named by the first argument.
FAMILY = """
import os, subprocess, sys, time
def report():
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()}\\n")
report()
if len(sys.argv) < 4:
    options = {"process_group": 0} if len(sys.argv) == 2 else {"start_new_session": True}
    subprocess.Popen([sys.executable, *sys.orig_argv[1:], "x"], **options)
time.sleep(60)
"""


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pids")
    return tmp_path / "pids"


def start_family(pids: Path) -> tuple[ChildProcess, list[int]]:
    """A leader with a child and a grandchild."""
    leader = ChildProcess([sys.executable, "-c", FAMILY, str(pids)], {}, pids.with_name("log"))
    members: list[int] = []
    while len(members) < 3:
        with pids.open() as fifo:
            members += [int(row) for row in fifo]
    return leader, members


def test_kill_reaches_other_process_groups_and_sessions(pids: Path) -> None:
    leader, members = start_family(pids)
    assert len(set(members)) == 3
    assert {process.pid for process in leader.members()} == set(members)
    before = time.monotonic()
    killed = leader.kill()
    assert killed.processes == 3
    assert before <= killed.at <= time.monotonic()
    assert not leader.running
    assert leader.exit_code == -signal.SIGKILL
    assert not [pid for pid in members if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
    assert leader.kill().processes == 0
    leader.await_exit()


def test_pause_and_resume_reach_all_members(pids: Path) -> None:
    leader, members = start_family(pids)

    def states() -> set[str]:
        return {psutil.Process(pid).status() for pid in members}

    try:
        with ProcessGroup(leader.pid).paused():
            assert states() == {"stopped"}
        eventually(lambda: "stopped" not in states(), "all run again")
    finally:
        assert leader.kill().processes == 3


def test_a_group_without_a_process_is_not_running() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    group = ProcessGroup(child.pid)
    assert not group.running
    assert group.members() == []
    assert group.kill().processes == 0


def test_a_command_that_exits_by_itself_is_reported_with_its_output(tmp_path: Path) -> None:
    child = ChildProcess([sys.executable, "-c", "print('no topic'); raise SystemExit(4)"], {}, tmp_path / "log")
    assert child.wait() == 4
    with pytest.raises(ClonosError, match="exit code 4:\nno topic"):
        child.check_running()
    assert child.stop() == 4


def test_stop_sends_sigterm_and_returns_the_exit_code(pids: Path) -> None:
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        f"open({str(pids)!r}, 'w').close()\n"
        "signal.pause()\n"
    )
    child = ChildProcess([sys.executable, "-c", code], {}, pids.with_name("log"))
    pids.read_text()
    child.check_running()
    assert child.stop() == 3


def test_a_wait_for_an_exit_times_out_with_the_processes(tmp_path: Path) -> None:
    child = ChildProcess([sys.executable, "-c", "import time; time.sleep(60)"], {}, tmp_path / "log")
    try:
        with pytest.raises(TimeoutError, match=f"no exit within 0.01 s:\n{child.pid} "):
            child.wait(0.01)
        with pytest.raises(TimeoutError, match=r"time\.sleep"):
            child.await_exit(0.0)
    finally:
        child.kill()
    assert describe(psutil.Process()).startswith(str(os.getpid()))


def test_processes_of_a_home_have_its_variable_and_no_setting_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLONOS_LOG_FORMAT", "json")
    environment = {"CLONOS_HOME": str(tmp_path), "CLONOS_RUN": "run-1"}
    code = "import time; print('ready', flush=True); time.sleep(60)"
    child = ChildProcess([sys.executable, "-c", code], environment, tmp_path / "log", own_settings=True)
    try:
        eventually(lambda: child.tail() == "ready", "the process starts")
        assert [(process.pid, run) for process, run in processes_of_home(tmp_path)] == [(child.pid, "run-1")]
        assert "CLONOS_LOG_FORMAT" not in psutil.Process(child.pid).environ()
    finally:
        child.kill()
    assert list(processes_of_home(tmp_path)) == []


def test_a_process_that_exits_while_processes_are_listed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = ChildProcess([sys.executable, "-c", "input()"], {}, tmp_path / "log")
    process = psutil.Process(child.pid)
    child.kill()
    child.wait(10)
    monkeypatch.setattr(platform, "processes_of_home", lambda home: iter([(process, ""), (psutil.Process(), "")]))
    (command,) = Stack(tmp_path).processes()
    assert "python" in command


def test_eventually_returns_the_value_or_times_out_with_details() -> None:
    values = iter([None, "", "ready"])
    assert eventually(lambda: next(values), "a value", poll_s=0.0) == "ready"
    with pytest.raises(TimeoutError, match="a state: not within 0 s\nthe details"):
        eventually(lambda: False, "a state", timeout_s=0.0, details=lambda: "the details")


@pytest.mark.parametrize(("processes_per_core", "lasts_s"), [(0.1, 10), (1.0, 10), (4.0, 40)])
def test_a_busy_machine_reaches_a_deadline_later(
    monkeypatch: pytest.MonkeyPatch, processes_per_core: float, lasts_s: float
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("os.getloadavg", lambda: (2 * processes_per_core, 0.0, 0.0))
    deadline = Deadline(10.0)
    now += lasts_s - 1
    assert not deadline.passed()
    now += 2
    assert deadline.passed()
    assert deadline.waited_s == lasts_s + 1


class Error:
    """An error of the client."""

    def __init__(self, code: int) -> None:
        self._code = code

    def code(self) -> int:
        return self._code

    def fatal(self) -> bool:
        return False

    def retriable(self) -> bool:
        return False

    def str(self) -> str:
        return "authentication failed"


class Received:
    """A message of the client: a record, or an error."""

    def __init__(self, error: Error | None = None) -> None:
        self._error = error

    def error(self) -> Error | None:
        return self._error

    def topic(self) -> str:
        return "words"

    def partition(self) -> int:
        return 0


def test_a_reader_drains_at_the_end_of_every_partition_and_raises_a_lost_broker() -> None:
    taken: list[Any] = []
    reader = CommittedReader(
        KafkaSettings(bootstrap_servers="127.0.0.1:1"), {"words": 1}, lambda message, _arrived: taken.append(message)
    )
    try:
        assert not reader.drain(quiet_s=0.0, timeout_s=0.01)
        reader.receive(Received(Error(-191)), 1.0)  # type: ignore[arg-type]  # the end of the partition
        assert reader.drain(quiet_s=0.0)
        reader.receive(Received(), 2.0)  # type: ignore[arg-type]
        assert len(taken) == 1
        assert not reader.drain(quiet_s=0.0, timeout_s=0.01)
        reader.receive(Received(Error(58)), 3.0)  # type: ignore[arg-type]
        with pytest.raises(BrokerUnavailable, match="authentication failed"):
            reader.wait_for(lambda: True, 1.0)
    finally:
        reader.stop()


def test_a_group_whose_id_belongs_to_another_process_now_has_no_members(tmp_path: Path) -> None:
    """Linux reuses process ids; the ids of sessions are process ids."""
    child = ChildProcess([sys.executable, "-c", "import time; time.sleep(60)"], {}, tmp_path / "log")
    try:
        group = ProcessGroup(child.pid)
        assert [process.pid for process in group.members()] == [child.pid]
        group._leader = psutil.Process()
        assert group.members() == []
    finally:
        child.kill()
