"""Spares: drivers without a job that an agent keeps, and gives to the runs of jobs that are to have one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from agent.api import FakeApi
from agent.hosts import HERE, QUICK, ProcessAgent, ThreadAgent, alive, order, processes_of, settings
from agent.test_supervising import reported
from clonos.agent import Agent, keeper, pool
from clonos.agent.process import end_all
from clonos.errors import SpecError
from clonos.resources.hosts import RunOrder
from clonos.spec import Spec
from clonos.standby.offers import Given, Offer, fits
from clonos.standby.orders import promote
from clonos.standby.pipes import opened
from observe import eventually

Host = Callable[..., ThreadAgent]
StartProcess = Callable[..., ProcessAgent]

DRIVER: Final = (sys.executable, str(HERE / "fake_driver.py"), "run", "{spec}", "{events}")
SPARE: Final = (sys.executable, str(HERE / "fake_spare.py"), "{folder}")
SPARES: Final[dict[str, Any]] = {"spares": 1, "spare_command": SPARE, "command": DRIVER}


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """A spare that became a driver outlives its agent."""
    yield
    for folder in folders(tmp_path):
        end_all(folder.name, None, "")


def pooled(api: FakeApi, run: str, code: bytes = b"until_stopped()", **more: Any) -> RunOrder:
    found = order(run, api.upload(code), **more)
    spec = found.spec.spec.model_copy(update={"standby": Spec.model_validate({"standby": {"mode": "pool"}}).standby})
    return found.model_copy(update={"spec": found.spec.model_copy(update={"spec": spec})})


def folders(home: Path) -> list[Path]:
    return sorted((home / "agent" / "host-1" / "spares").glob("*"))


def ready(api: FakeApi, number: int = 1) -> None:
    eventually(lambda: api.spares == number, f"{number} spares are told", timeout_s=30)


def test_a_spare_is_the_driver_of_the_next_run(
    api: FakeApi, host: Host, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_PAUSE_S", 0.0)
    agent = host(**SPARES)
    ready(api)
    (spare,) = folders(tmp_path)
    (pid,) = processes_of(spare.name)
    api.order(pooled(api, run, b"print(os.environ['CLONOS_RUN'], os.getcwd()); until_stopped()"))
    report = reported(api, run, "RUNNING", driver_state="RUNNING")
    assert report.pid == pid
    log = tmp_path / "agent" / "host-1" / "runs" / run / "driver.log"
    eventually(lambda: f"{run} {log.parent}/work" in log.read_text(), "it works where a driver of this run does")
    if os.geteuid() == 0:
        assert os.getpriority(os.PRIO_PROCESS, pid) == 0
    # Another one takes its place, and is the driver when this one falls.
    eventually(lambda: len(folders(tmp_path)) == 2, "another one is started")
    ready(api)
    (other,) = set(folders(tmp_path)) - {spare}
    os.kill(pid, signal.SIGKILL)
    again = reported(api, run, "RUNNING", driver_state="RUNNING", attempts=2)
    assert not spare.exists()
    assert processes_of(other.name) == [again.pid]
    agent.stop()
    assert again.pid is not None
    assert alive(again.pid), "a driver goes on"
    assert folders(tmp_path) == [other]


def test_without_a_spare_that_is_ready_it_is_started_cold(api: FakeApi, host: Host, run: str) -> None:
    api.order(pooled(api, run))
    agent = host(**{**SPARES, "spare_command": (sys.executable, "-c", "import time; time.sleep(600)", "{folder}")})
    reported(api, run, "RUNNING", driver_state="RUNNING")
    assert api.spares == 0
    agent.stop()


def test_one_that_falls_as_it_is_given_a_run_is_no_failure(
    api: FakeApi, host: Host, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Offer, "give", lambda self, _given: self.drop())
    host(**SPARES)
    ready(api)
    api.order(pooled(api, run))
    report = reported(api, run, "RUNNING", driver_state="RUNNING")
    assert (report.attempts, report.failure) == (1, None)


@pytest.mark.parametrize("standby", [{"replicas": 1}, {"mode": "none"}])
def test_other_jobs_leave_spares_alone(
    api: FakeApi, host: Host, run: str, tmp_path: Path, standby: dict[str, Any]
) -> None:
    agent = host(**SPARES)
    ready(api)
    one = pooled(api, run)
    spec = one.spec.spec.model_copy(update={"standby": Spec.model_validate({"standby": standby}).standby})
    api.order(one.model_copy(update={"spec": one.spec.model_copy(update={"spec": spec})}))
    reported(api, run, "RUNNING", driver_state="RUNNING")
    assert api.spares == 1
    agent.stop()
    assert folders(tmp_path) == [], "they end with their agent"


def test_the_next_agent_ends_spares_but_not_drivers(
    api: FakeApi, host_process: StartProcess, run: str, tmp_path: Path
) -> None:
    first = host_process(**{**SPARES, "spares": 2})
    ready(api, 2)
    api.order(pooled(api, run))
    pid = reported(api, run, "RUNNING", driver_state="RUNNING").pid
    left = [one for one in folders(tmp_path) if processes_of(one.name) not in ([pid], [])]
    assert len(left) == 1
    first.kill()
    api.reports.clear()
    second = host_process(**{**SPARES, "spares": 0})
    assert reported(api, run, "RUNNING", driver_state="RUNNING").pid == pid
    eventually(lambda: not processes_of(left[0].name), "the one that nobody needs is ended")
    api.order(pooled(api, run, goal="GONE"))
    reported(api, run, "EXITED", final=True)
    eventually(lambda: folders(tmp_path) == [], "and nothing is left")
    second.end()


@pytest.mark.parametrize(
    "more", [{"driverMemoryMb": 512}, {"master": "local[1]"}, {"sparkConf": {"a": "b"}}, {"standby": {"replicas": 1}}]
)
def test_what_a_spare_could_not_be_any_more(more: dict[str, Any]) -> None:
    assert fits(Spec.model_validate({"standby": {"mode": "pool"}}))
    assert not fits(Spec.model_validate({"standby": {"mode": "pool"}, **more}))


def test_a_spare_that_ends_before_it_comes_to_the_job_is_followed(
    api: FakeApi, host: Host, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its exit code: it is not the job's doing."""
    host(
        **{**SPARES, "spares": 2, "spare_command": (sys.executable, str(HERE / "fake_spare.py"), "{folder}", "--falls")}
    )
    ready(api, 2)  # and the other one is not tried
    api.order(pooled(api, run, restart=QUICK.model_copy(update={"attempts": 0})))
    report = reported(api, run, "RUNNING", driver_state="RUNNING")
    assert (report.attempts, report.in_row) == (2, 0)
    assert report.exit_code == 11


def test_one_that_does_nothing_is_ended(api: FakeApi, host: Host, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_HEARD_S", 1.0)
    host(
        **{**SPARES, "spares": 2, "spare_command": (sys.executable, str(HERE / "fake_spare.py"), "{folder}", "--hangs")}
    )
    ready(api, 2)  # and the other one is not tried
    api.order(pooled(api, run, restart=QUICK.model_copy(update={"attempts": 0})))
    report = reported(api, run, "RUNNING", driver_state="RUNNING")
    assert (report.attempts, report.in_row) == (2, 0)
    assert report.failure is None or "1 s" in report.failure.what


def test_one_that_does_not_get_warm_makes_room_for_another(
    api: FakeApi, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_WARM_S", 0.5)
    monkeypatch.setattr(pool, "_PAUSE_S", 0.0)
    host(**{**SPARES, "spare_command": (sys.executable, "-c", "import time; time.sleep(600)", "{folder}")})
    first = eventually(lambda: folders(tmp_path), "one is started")
    eventually(lambda: folders(tmp_path) and folders(tmp_path) != first, "another one is")


def test_a_full_disk_ends_no_agent(
    api: FakeApi, host: Host, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent" / "host-1").mkdir(parents=True)
    (tmp_path / "agent" / "host-1" / "spares").write_text("no folder can be made here")
    agent = host(**SPARES)
    api.order(pooled(api, run))
    reported(api, run, "RUNNING", driver_state="RUNNING")
    assert agent.alive


@pytest.mark.parametrize("what", ["link", "file", "nobody reads"])
def test_an_agent_writes_into_nothing_but_a_pipe_that_somebody_reads(tmp_path: Path, what: str) -> None:
    pipe, other = tmp_path / "given", tmp_path / "other"
    other.write_text("theirs")
    if what == "link":
        pipe.symlink_to(other)
    elif what == "file":
        pipe.write_text("theirs")
    else:
        os.mkfifo(pipe)
    assert opened(pipe) is None
    assert not promote(pipe)
    assert other.read_text() == "theirs"


def test_an_order_that_is_too_long_for_a_pipe_is_not_given(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "given")
    assert Offer.of(tmp_path) is None, "nobody listens"
    reader = os.open(tmp_path / "given", os.O_RDONLY | os.O_NONBLOCK)
    given = Given(arguments=("run", "x"), environment={"long": "x" * 5000}, directory=tmp_path, log=tmp_path / "log")
    offer = Offer.of(tmp_path)
    assert offer is not None
    assert not offer.give(given)
    os.close(reader)


def test_limits_of_memory_and_spares_do_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="memory"):
        Agent(settings(tmp_path, "http://localhost", spares=1, memory_limit_mb=100))
