"""Two drivers of one job started together: one publishes, the other stops as superseded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from drivers import JOBS, SUPERSEDED, Feeder, JobRun, Published, caught_up

from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, has_open_transaction


@pytest.fixture
def run(kafka: KafkaSettings, name: str, make_topic: Callable[..., str], tmp_path: Path) -> Iterator[JobRun]:
    params = {"input": make_topic(3, "in"), "output": make_topic(2, "out")}
    run = JobRun(kafka, name, tmp_path / "home", JOBS / "points.py", params)
    yield run
    run.end()


@pytest.mark.chaos(fault="concurrent start", target="two drivers", topology="clonos run")
@pytest.mark.timeout(3000)
def test_two_drivers_started_together(kafka: KafkaSettings, run: JobRun, every_point: bool) -> None:
    feeder = Feeder(kafka, run.params["input"], 3)
    for race in range(20 if every_point else 1):
        feeder.burst(20)
        pair = [run.start(), run.start()]
        eventually(lambda p=pair: any(not d.running for d in p), "one of them stops", timeout_s=90)
        loser = next(driver for driver in pair if not driver.running)
        winner = next(driver for driver in pair if driver is not loser)
        assert loser.exit_code == SUPERSEDED, f"race {race}:\n{loser.tail()}"
        eventually(
            lambda w=winner: not w.running or caught_up(run, run.params["output"], feeder.sent),
            "the other publishes",
            timeout_s=90,
        )
        assert winner.running, f"race {race}:\n{winner.tail()}"
        winner.stop_gracefully()
        print(f"race {race}: generation {run.events_of('claimed')[-1]['generation']}", flush=True)
    assert Published.read(kafka, run.params["output"]).faults(feeder.sent) == {}
    eventually(lambda: not has_open_transaction(kafka, run.params["output"]), "no transaction is open")
