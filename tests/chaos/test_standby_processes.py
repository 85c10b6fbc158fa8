"""A standby process does not affect the driver while it waits, and continues at the driver's epoch when promoted."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from drivers import JOBS, SUPERSEDED, Feeder, JobRun, Published, caught_up
from standbys import Standbys

from clonos.log.claiming import newest_owner
from clonos.settings import KafkaSettings
from clonos.standby.promotion import promote
from clonos.testing.harness import eventually, has_open_transaction, read_committed
from support.sockets import exposed, listening_ports

pytestmark = [pytest.mark.timeout(3000)]
DUE_S = 20.0  # of the timers of jobs/timed.py


@pytest.fixture
def standbys(kafka: KafkaSettings, name: str, make_topic: Callable[..., str], tmp_path: Path) -> Iterator[Standbys]:
    params = {"input": make_topic(3, "in"), "output": make_topic(2, "out"), "counts": make_topic(2, "counts")}
    run = JobRun(kafka, name, tmp_path / "home", JOBS / "points.py", params)
    yield Standbys(run)
    run.end()


@pytest.mark.chaos(fault="none", target="", topology="clonos run --standby")
def test_a_rehearsal_calls_no_function_and_publishes_nothing(kafka: KafkaSettings, standbys: Standbys) -> None:
    run = standbys.run
    run.job = JOBS / "watched.py"
    Feeder(kafka, run.params["input"], 3).burst(30)
    driver, pipe = standbys.start_ready()
    assert not (run.home / "calls").exists(), (run.home / "calls").read_text()
    assert read_committed(kafka, run.params["output"]) == read_committed(kafka, run.params["counts"]) == []
    assert not (run.home / "jobs").exists() or not list((run.home / "jobs").rglob("offsets/*")), (
        "no checkpoint is written"
    )
    assert run.events_of("claimed") == []
    assert promote(pipe)
    eventually(lambda: len(read_committed(kafka, run.params["output"])) == 30, "the standby publishes", timeout_s=60)
    assert {"udf", "pandas_udf", "operator"} <= set((run.home / "calls").read_text().split())
    driver.stop_gracefully()


@pytest.mark.full
@pytest.mark.chaos(fault="SIGKILL", target="driver", topology="clonos run --standby, stateful job")
def test_a_rehearsal_on_the_jobs_own_state_calls_no_function(kafka: KafkaSettings, standbys: Standbys) -> None:
    """The rehearsal does not call a timer that is due either."""
    run = standbys.run
    run.job = JOBS / "timed.py"
    feeder = Feeder(kafka, run.params["input"], 3)
    primary = run.start()
    feeder.burst(30)
    eventually(lambda: len(run.events_of("epoch")) > 1, "an epoch is committed", timeout_s=120)
    primary.kill()
    due_at = time.monotonic() + DUE_S
    assert read_committed(kafka, run.params["output"]) == [], "no timer was due"
    (run.home / "calls").unlink()
    before = {file: file.read_bytes() for file in (run.home / "jobs").rglob("*") if file.is_file()}
    eventually(lambda: time.monotonic() > due_at, "the timers are due", timeout_s=2 * DUE_S)
    driver, pipe = standbys.start_ready()
    eventually(lambda: run.events_of("rehearsed"), "the standby has rehearsed", timeout_s=120)
    assert run.events_of("rehearsed")[-1]["state"]["timed"] in ("changes", "snapshot")
    assert 0.02 < run.events_of("rehearsed")[-1]["epoch_s"] < 60
    assert run.events_of("not-rehearsed") == []
    assert [line for line in driver.tail(100_000).splitlines() if "ERROR" in line] == []
    assert not (run.home / "calls").exists(), (run.home / "calls").read_text()
    assert {file: file.read_bytes() for file in (run.home / "jobs").rglob("*") if file.is_file()} == before
    assert promote(pipe)
    feeder.burst(1)  # a restarted query checks its timers once it has input
    eventually(lambda: len(read_committed(kafka, run.params["output"])) >= 30, "the due timers publish", timeout_s=60)
    assert "timer" in (run.home / "calls").read_text()
    driver.stop_gracefully()


@pytest.mark.turn(0, 2, 4, 8, 10, 12)  # in the other turns standbys take over in other tests
@pytest.mark.chaos(fault="SIGKILL", target="driver, twice", topology="clonos run --standby")
def test_a_promoted_standby_continues_at_the_drivers_epoch(kafka: KafkaSettings, standbys: Standbys) -> None:
    run = standbys.run
    primary = run.start()
    with Feeder(kafka, run.params["input"], 3) as feeder:
        for _ in range(2):
            standby, pipe = standbys.start_ready()
            owner = newest_owner(kafka, run.name)
            assert primary.running, "the standby did not disturb the driver"
            for driver in (primary, standby):
                assert len(listening_ports(driver.pid)) == 4, "Spark's two, and one for calls in each direction"
                assert exposed(driver.pid) == [], "other users of the machine can connect to loopback"
            primary.kill()
            assert newest_owner(kafka, run.name) == owner, "a standby claims only when promoted"
            assert promote(pipe)
            done = len(run.events_of("epoch"))
            eventually(lambda done=done: len(run.events_of("epoch")) > done + 3, "the standby publishes", timeout_s=60)
            primary = standby
    eventually(lambda: caught_up(run, run.params["output"], feeder.sent), "all records are published", timeout_s=60)
    primary.stop_gracefully()
    assert Published.read(kafka, run.params["output"]).faults(feeder.sent) == {}
    eventually(lambda: not has_open_transaction(kafka, run.params["output"]), "no transaction is open")


@pytest.mark.full
@pytest.mark.chaos(fault="SIGSTOP; two promotions", target="driver, two standbys", topology="clonos run --standby")
def test_a_driver_that_resumes_after_a_takeover_exits(kafka: KafkaSettings, standbys: Standbys) -> None:
    """Two standbys are promoted at once; only one of them runs the job."""
    run = standbys.run
    zombie = run.start()
    with Feeder(kafka, run.params["input"], 3) as feeder:
        eventually(lambda: len(run.events_of("epoch")) > 3, "the driver publishes", timeout_s=120)
        (first, first_pipe), (second, second_pipe) = standbys.start_ready(), standbys.start_ready()
        zombie.pause()
        assert promote(first_pipe)
        assert promote(second_pipe)
        eventually(
            lambda: not first.running or not second.running,
            "one of two stops",
            timeout_s=60,
        )
        loser, winner = (first, second) if not first.running else (second, first)
        assert loser.exit_code == SUPERSEDED, loser.tail()
        zombie.resume()
        assert zombie.wait() == SUPERSEDED, zombie.tail()
        done = len(run.events_of("epoch"))
        eventually(lambda: len(run.events_of("epoch")) > done + 3, "the other standby continues", timeout_s=60)
    eventually(lambda: caught_up(run, run.params["output"], feeder.sent), "all records are published", timeout_s=60)
    winner.stop_gracefully()
    assert Published.read(kafka, run.params["output"]).faults(feeder.sent) == {}


@pytest.mark.full
@pytest.mark.chaos(fault="SIGTERM", target="standby", topology="clonos run --standby")
def test_a_standby_removes_its_pipe_on_sigterm(standbys: Standbys) -> None:
    Feeder(standbys.run.kafka, standbys.run.params["input"], 3).burst(3)
    driver, pipe = standbys.start_ready()
    os.killpg(driver.pid, signal.SIGTERM)
    assert driver.wait(60) == 0
    assert not pipe.exists()
    assert not promote(pipe)
