"""A standby as a process: it disturbs nobody while it waits, and goes on exactly where the driver fell."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from drivers import JOBS, SUPERSEDED, Feeder, JobRun, Published, caught_up
from standing import Standing

from clonos.log.claiming import newest_owner
from clonos.settings import KafkaSettings
from clonos.standby.orders import promote
from observe import ends_agree, eventually, read_committed

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]


@pytest.fixture
def standing(kafka: KafkaSettings, name: str, make_topic: Callable[..., str], tmp_path: Path) -> Iterator[Standing]:
    params = {"input": make_topic(3, "in"), "output": make_topic(2, "out"), "counts": make_topic(2, "counts")}
    run = JobRun(kafka, name, tmp_path / "home", JOBS / "points.py", params)
    yield Standing(run)
    run.end()


def test_a_rehearsal_calls_nobody_and_publishes_nothing(kafka: KafkaSettings, standing: Standing) -> None:
    run = standing.run
    run.job = JOBS / "watched.py"
    Feeder(kafka, run.params["input"], 3).burst(30)
    driver, pipe = standing.stand_by()
    assert not (run.home / "calls").exists(), (run.home / "calls").read_text()
    assert read_committed(kafka, run.params["output"]) == read_committed(kafka, run.params["counts"]) == []
    assert not (run.home / "jobs").exists() or not list((run.home / "jobs").rglob("offsets/*")), "nor its checkpoint"
    assert run.told("claimed") == []
    assert promote(pipe)
    eventually(lambda: len(read_committed(kafka, run.params["output"])) == 30, "it drives", timeout_s=60)
    assert {"udf", "pandas_udf", "operator"} <= set((run.home / "calls").read_text().split())
    driver.stop()


def test_a_rehearsal_on_the_jobs_own_state_calls_nobody(kafka: KafkaSettings, standing: Standing) -> None:
    """Not even a timer that is due."""
    run = standing.run
    run.job = JOBS / "timed.py"
    feeder = Feeder(kafka, run.params["input"], 3)
    primary = run.start()
    feeder.burst(30)
    eventually(lambda: len(run.told("epoch")) > 1, "an epoch is committed", timeout_s=120)
    primary.kill()
    assert read_committed(kafka, run.params["output"]) == [], "no timer was due"
    (run.home / "calls").unlink()
    before = {file: file.read_bytes() for file in (run.home / "jobs").rglob("*") if file.is_file()}
    driver, pipe = standing.stand_by()
    eventually(lambda: run.told("rehearsed"), "it is warm", timeout_s=120)
    assert run.told("rehearsed")[-1]["state"]["timed"] in ("changes", "snapshot")
    assert run.told("not-rehearsed") == []
    assert "ERROR" not in driver.tail(100_000)
    assert not (run.home / "calls").exists(), (run.home / "calls").read_text()
    assert {file: file.read_bytes() for file in (run.home / "jobs").rglob("*") if file.is_file()} == before
    assert promote(pipe)
    feeder.burst(1)  # a query that was started again looks at its timers once there is input
    eventually(lambda: len(read_committed(kafka, run.params["output"])) >= 30, "they are told", timeout_s=60)
    assert "timer" in (run.home / "calls").read_text()
    driver.stop()


def test_it_goes_on_where_the_driver_fell(kafka: KafkaSettings, standing: Standing) -> None:
    run = standing.run
    primary = run.start()
    with Feeder(kafka, run.params["input"], 3) as feeder:
        for _ in range(2):
            standby, pipe = standing.stand_by()
            owner = newest_owner(kafka, run.name)
            assert primary.process.poll() is None, "it was left alone"
            primary.kill()
            assert newest_owner(kafka, run.name) == owner, "nobody claims before it is told to"
            assert promote(pipe)
            done = len(run.told("epoch"))
            eventually(lambda done=done: len(run.told("epoch")) > done + 3, "it drives", timeout_s=60)
            primary = standby
    eventually(lambda: caught_up(run, run.params["output"], feeder.sent), "all of it is published", timeout_s=60)
    primary.stop()
    assert Published.read(kafka, run.params["output"]).faults(feeder.sent) == {}
    eventually(lambda: ends_agree(kafka, run.params["output"]), "no transaction is open")


def test_a_driver_that_wakes_up_after_the_takeover_stops(kafka: KafkaSettings, standing: Standing) -> None:
    """And two standbys that are promoted at once: one drives."""
    run = standing.run
    zombie = run.start()
    with Feeder(kafka, run.params["input"], 3) as feeder:
        eventually(lambda: len(run.told("epoch")) > 3, "it drives", timeout_s=120)
        (first, one), (second, other) = standing.stand_by(), standing.stand_by()
        zombie.signal(signal.SIGSTOP)
        assert promote(one)
        assert promote(other)
        eventually(
            lambda: first.process.poll() is not None or second.process.poll() is not None,
            "one of two stops",
            timeout_s=60,
        )
        loser, winner = (first, second) if first.process.poll() is not None else (second, first)
        assert loser.process.returncode == SUPERSEDED, loser.tail()
        zombie.signal(signal.SIGCONT)
        assert zombie.wait() == SUPERSEDED, zombie.tail()
        done = len(run.told("epoch"))
        eventually(lambda: len(run.told("epoch")) > done + 3, "the other goes on", timeout_s=60)
    eventually(lambda: caught_up(run, run.params["output"], feeder.sent), "all of it is published", timeout_s=60)
    winner.stop()
    assert Published.read(kafka, run.params["output"]).faults(feeder.sent) == {}


def test_a_standby_that_is_asked_to_stop_leaves_nothing(standing: Standing) -> None:
    Feeder(standing.run.kafka, standing.run.params["input"], 3).burst(3)
    driver, pipe = standing.stand_by()
    os.killpg(driver.pid, signal.SIGTERM)
    assert driver.wait(60) == 0
    assert not pipe.exists()
    assert not promote(pipe)
