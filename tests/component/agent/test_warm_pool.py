"""Pool drivers: warm drivers without a job, which an agent uses for the next runs of eligible jobs."""

from __future__ import annotations

import os
import signal
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from clonos.agent import Agent, launching, run_attempt, warm_pool
from clonos.agent.process import kill_all
from clonos.agent.run_attempt import RunAttempt
from clonos.errors import SpecError
from clonos.jobs.spec import Spec
from clonos.resources.hosts import RunSpec
from clonos.standby.launch_request import MAILBOX, LaunchRequest, pool_eligible
from clonos.standby.mailbox import Sender
from clonos.standby.promotion import promote
from clonos.testing.harness import eventually
from component.agent.api import FakeApi
from component.agent.hosts import HERE, QUICK, ProcessAgent, ThreadAgent, alive, processes_of, run_spec, settings
from component.agent.test_standbys_of_agents import STANDS_BY
from component.agent.test_supervising import reported

Host = Callable[..., ThreadAgent]
StartProcess = Callable[..., ProcessAgent]

DRIVER: Final = (sys.executable, str(HERE / "fake_driver.py"), "run", "{spec}", "{events}")
POOL_DRIVER: Final = (sys.executable, str(HERE / "fake_pool_driver.py"), "{folder}")
POOL: Final[dict[str, Any]] = {"pool_size": 1, "pool_driver_command": POOL_DRIVER, "command": DRIVER}


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Kill former pool drivers, which outlive their agent."""
    yield
    for folder in folders(tmp_path):
        kill_all(folder.name, None, "")


def pooled(
    api: FakeApi,
    run: str,
    code: bytes = b"until_stopped()",
    standbys: Mapping[str, Any] = types.MappingProxyType({"mode": "pool"}),
    **more: Any,
) -> RunSpec:
    base = run_spec(run, api.upload(code), **more)
    standby = Spec.model_validate({"standby": standbys}).standby
    spec = base.spec.spec.model_copy(update={"standby": standby})
    return base.model_copy(update={"spec": base.spec.model_copy(update={"spec": spec})})


def folders(home: Path) -> list[Path]:
    return sorted((home / "agent" / "host-1" / "pool_drivers").glob("*"))


def ready(api: FakeApi, number: int = 1) -> None:
    eventually(lambda: api.pool_drivers == number, f"{number} pool drivers are reported", timeout_s=60)


def test_pool_driver_becomes_the_driver_of_the_next_run(
    api: FakeApi, host: Host, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_pool, "_RESTART_PAUSE_S", 0.0)
    agent = host(**POOL)
    ready(api)
    (pool_driver,) = folders(tmp_path)
    (pid,) = processes_of(pool_driver.name)
    api.assign(pooled(api, run, b"print(os.environ['CLONOS_RUN'], os.getcwd()); until_stopped()"))
    report = reported(api, run, "RUNNING", driver_state="RUNNING")
    assert report.pid == pid
    log = tmp_path / "agent" / "host-1" / "runs" / run / "driver.log"
    eventually(lambda: f"{run} {log.parent}/work" in log.read_text(), "it works in the run's directory")
    if os.geteuid() == 0:
        assert os.getpriority(os.PRIO_PROCESS, pid) == 0
    # Another pool driver replaces it, and becomes the driver when this driver is killed.
    eventually(lambda: len(folders(tmp_path)) == 2, "another pool driver starts")
    ready(api)
    (other,) = set(folders(tmp_path)) - {pool_driver}
    os.kill(pid, signal.SIGKILL)
    again = reported(api, run, "RUNNING", driver_state="RUNNING", attempts=2)
    assert not pool_driver.exists()
    assert processes_of(other.name) == [again.pid]
    agent.stop()
    assert again.pid is not None
    assert alive(again.pid), "a driver outlives its agent"
    assert folders(tmp_path) == [other]


def test_run_starts_cold_without_a_ready_pool_driver(api: FakeApi, host: Host, run: str) -> None:
    api.assign(pooled(api, run))
    agent = host(**{**POOL, "pool_driver_command": (sys.executable, "-c", "import time; time.sleep(600)", "{folder}")})
    reported(api, run, "RUNNING", driver_state="RUNNING")
    assert api.pool_drivers == 0
    agent.stop()


def test_pool_driver_that_exits_at_its_launch_is_not_a_failure(
    api: FakeApi, host: Host, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sender, "send", lambda self, _message: self.close())
    host(**POOL)
    ready(api)
    api.assign(pooled(api, run))
    report = reported(api, run, "RUNNING", driver_state="RUNNING")
    assert (report.attempts, report.failure) == (1, None)


@pytest.mark.parametrize("standby", [{"replicas": 0}, {"replicas": 1}, {"mode": "none"}])
def test_other_jobs_use_no_pool_driver_at_their_first_start(
    api: FakeApi, host: Host, run: str, tmp_path: Path, standby: dict[str, Any]
) -> None:
    agent = host(**POOL)
    ready(api)
    api.assign(pooled(api, run, standbys=standby))
    reported(api, run, "RUNNING", driver_state="RUNNING")
    assert api.pool_drivers == 1
    agent.stop()
    assert folders(tmp_path) == [], "pool drivers exit with their agent"


def test_next_agent_kills_pool_drivers_but_not_drivers(
    api: FakeApi, host_process: StartProcess, run: str, tmp_path: Path
) -> None:
    first = host_process(**{**POOL, "pool_size": 2})
    ready(api, 2)
    api.assign(pooled(api, run))
    pid = reported(api, run, "RUNNING", driver_state="RUNNING").pid
    left = [folder for folder in folders(tmp_path) if processes_of(folder.name) not in ([pid], [])]
    assert left  # on a busy machine the next pool driver has replaced the one that was used
    first.kill()
    api.reports.clear()
    second = host_process(**{**POOL, "pool_size": 0})
    assert reported(api, run, "RUNNING", driver_state="RUNNING").pid == pid
    eventually(lambda: not any(processes_of(folder.name) for folder in left), "unused pool drivers are killed")
    api.assign(pooled(api, run, desired="ABSENT"))
    reported(api, run, "EXITED", final=True)
    eventually(lambda: folders(tmp_path) == [], "no directory remains")
    second.end()


@pytest.mark.parametrize("more", [{"driver": {"memory": "512m"}}, {"master": "local[1]"}, {"sparkConf": {"a": "b"}}])
@pytest.mark.parametrize("standby", [{"mode": "pool"}, {"replicas": 1}])
def test_job_with_its_own_process_settings_uses_no_pool_driver(standby: dict[str, Any], more: dict[str, Any]) -> None:
    assert pool_eligible(Spec.model_validate({"standby": standby}), first_start=False)
    assert not pool_eligible(Spec.model_validate({"standby": standby, **more}), first_start=False)


def test_job_with_settings_of_a_session_uses_a_pool_driver() -> None:
    spec = Spec.model_validate({"standby": {"replicas": 1}, "sparkConf": {"spark.sql.shuffle.partitions": "2"}})
    assert pool_eligible(spec, first_start=False)


def test_job_with_standbys_recovers_in_a_pool_driver(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    host(**POOL)
    ready(api)
    (pool_driver,) = folders(tmp_path)
    api.assign(pooled(api, run, standbys={"replicas": 1}))
    first = reported(api, run, "RUNNING", driver_state="RUNNING").pid
    assert first is not None
    assert processes_of(pool_driver.name) != [first]
    os.kill(first, signal.SIGKILL)
    again = reported(api, run, "RUNNING", driver_state="RUNNING", attempts=2)
    assert processes_of(pool_driver.name) == [again.pid]


def test_standby_starts_in_a_pool_driver(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    host(**POOL)
    ready(api)
    (pool_driver,) = folders(tmp_path)
    code = STANDS_BY.replace(b"PAUSE", b"0")
    api.assign(pooled(api, run, code, standbys={"replicas": 1}, standby=True))
    waiting = reported(api, run, "RUNNING", driver_state="READY")
    assert processes_of(pool_driver.name) == [waiting.pid]
    assert waiting.pid is not None
    api.assign(pooled(api, run, code, standbys={"replicas": 1}, earlier_attempts=3))
    drives = reported(api, run, "RUNNING", driver_state="RUNNING", generation=1)
    assert (drives.pid, drives.attempts) == (waiting.pid, 4)
    if os.geteuid() == 0:
        assert os.getpriority(os.PRIO_PROCESS, waiting.pid) <= 0, "it no longer has a pool driver's priority"


def test_pool_driver_that_exits_before_the_job_starts_is_replaced(api: FakeApi, host: Host, run: str) -> None:
    """Its exit code does not count as a failure of the job."""
    host(
        **{
            **POOL,
            "pool_size": 2,
            "pool_driver_command": (sys.executable, str(HERE / "fake_pool_driver.py"), "{folder}", "--exits"),
        }
    )
    ready(api, 2)  # the second one is not used
    api.assign(pooled(api, run, restart=QUICK.model_copy(update={"attempts": 0})))
    report = reported(api, run, "RUNNING", driver_state="RUNNING")
    assert (report.attempts, report.consecutive_failures) == (2, 0)
    assert report.exit_code == 11


def test_pool_driver_without_events_after_its_launch_is_killed(
    api: FakeApi, host: Host, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_attempt, "_FIRST_EVENT_S", 1.0)
    host(
        **{
            **POOL,
            "pool_size": 2,
            "pool_driver_command": (sys.executable, str(HERE / "fake_pool_driver.py"), "{folder}", "--hangs"),
        }
    )
    ready(api, 2)  # the second one is not used
    api.assign(pooled(api, run, restart=QUICK.model_copy(update={"attempts": 0})))
    report = reported(api, run, "RUNNING", driver_state="RUNNING")
    assert (report.attempts, report.consecutive_failures) == (2, 0)
    assert report.failure is None or "1 s" in report.failure.what


def test_pool_driver_that_does_not_become_ready_is_replaced(
    api: FakeApi, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_pool, "_WARM_UP_LIMIT_S", 0.5)
    monkeypatch.setattr(warm_pool, "_RESTART_PAUSE_S", 0.0)
    host(**{**POOL, "pool_driver_command": (sys.executable, "-c", "import time; time.sleep(600)", "{folder}")})
    first = eventually(lambda: folders(tmp_path), "a pool driver starts")
    eventually(lambda: folders(tmp_path) and folders(tmp_path) != first, "another pool driver starts")


def test_the_pause_after_pool_drivers_that_fail_grows_until_one_is_ready(
    api: FakeApi, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[int] = []
    monkeypatch.setattr(warm_pool, "pause_s", lambda failures: paused.append(failures) or 0.0)
    monkeypatch.setattr(warm_pool, "_CHECK_S", 0.02)
    works = tmp_path / "works"
    fails = f"import os, sys; os.path.exists({str(works)!r}) or sys.exit(1); os.execv(sys.executable, sys.argv[1:])"
    host(**{**POOL, "pool_driver_command": (sys.executable, "-c", fails, *POOL_DRIVER)})
    eventually(lambda: len(paused) > 2, "three pool drivers have failed")
    works.touch()
    ready(api)
    assert paused == list(range(len(paused)))
    (folder,) = folders(tmp_path)
    count = len(paused)
    eventually(lambda: [os.kill(pid, signal.SIGKILL) for pid in processes_of(folder.name)], "it is killed")
    eventually(lambda: len(paused) > count, "it is replaced")
    assert paused[count] == 0, "it was ready"


def test_a_pool_driver_that_imports_a_job_for_long_is_not_killed(
    api: FakeApi, host: Host, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_attempt, "_FIRST_EVENT_S", 1.0)
    command = (sys.executable, str(HERE / "fake_pool_driver.py"), "{folder}", "--imports", "3")
    host(**{**POOL, "pool_driver_command": command})
    ready(api)
    api.assign(pooled(api, run))
    assert reported(api, run, "RUNNING", driver_state="RUNNING").attempts == 1


def test_a_pool_driver_whose_import_does_not_end_is_killed(
    api: FakeApi, host: Host, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_attempt, "_IMPORT_S", 2.0)
    command = (sys.executable, str(HERE / "fake_pool_driver.py"), "{folder}", "--imports", "600")
    host(**{**POOL, "pool_driver_command": command})
    ready(api)
    api.assign(pooled(api, run, restart=QUICK.model_copy(update={"attempts": 0})))
    report = reported(api, run, "RUNNING", driver_state="RUNNING")
    assert (report.attempts, report.consecutive_failures) == (2, 0)


def test_a_job_that_crashes_in_a_loop_leaves_the_pool_drivers_to_others(
    api: FakeApi, host: Host, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[int] = []

    async def request(_settings: object, _pool: object, attempt: RunAttempt, *_: object, **_more: object) -> bool:
        requested.append(attempt.record.attempt)
        return False

    monkeypatch.setattr(launching, "launch_in_pool", request)
    host(**POOL)
    restart = QUICK.model_copy(update={"attempts": 5})
    api.assign(pooled(api, run, b"sys.exit(75)", standbys={"replicas": 0}, restart=restart))
    assert reported(api, run, "EXITED", final=True).attempts == 6
    assert requested == [2, 3]


def test_agent_survives_a_full_disk(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    (tmp_path / "agent" / "host-1").mkdir(parents=True)
    (tmp_path / "agent" / "host-1" / "pool_drivers").write_text("a file instead of the directory")
    agent = host(**POOL)
    api.assign(pooled(api, run))
    reported(api, run, "RUNNING", driver_state="RUNNING")
    assert agent.alive


@pytest.mark.parametrize("what", ["link", "file", "no reader"])
def test_sender_opens_only_a_pipe_with_a_reader(tmp_path: Path, what: str) -> None:
    pipe, other = tmp_path / "pipe", tmp_path / "other"
    other.write_text("unchanged")
    if what == "link":
        pipe.symlink_to(other)
    elif what == "file":
        pipe.write_text("unchanged")
    else:
        os.mkfifo(pipe)
    assert Sender.open(pipe) is None
    assert not promote(pipe)
    assert other.read_text() == "unchanged"


def test_launch_request_that_is_too_long_for_a_pipe_is_not_sent(tmp_path: Path) -> None:
    pipe = tmp_path / MAILBOX
    os.mkfifo(pipe)
    assert Sender.open(pipe) is None, "no process reads the pipe"
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    request = LaunchRequest(
        arguments=("run", "x"),
        environment={"long": "x" * 5000},
        directory=tmp_path,
        spec=tmp_path / "job.yaml",
        log=tmp_path / "log",
        events=Path("events"),
    )
    sender = Sender.open(pipe)
    assert sender is not None
    assert not sender.send(request.message())
    os.close(reader)


def test_memory_limit_excludes_pool_drivers(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="memory"):
        Agent(settings(tmp_path, "http://localhost", pool_size=1, memory_limit_mb=100))
