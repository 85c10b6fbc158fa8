"""A job killed with some lanes committed goes on with another number of cores: same tasks, same answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from drivers import JOBS, Feeder, JobRun, caught_up

from clonos.settings import KafkaSettings
from observe import ends_agree, eventually, read_committed

pytestmark = [pytest.mark.chaos, pytest.mark.broad]

LANES = 4  # Spark's default here: twice the cores of the first start


@pytest.fixture
def run(kafka: KafkaSettings, name: str, make_topic: Callable[..., str], tmp_path: Path) -> Iterator[JobRun]:
    params = {"input": make_topic(3, "in"), "output": make_topic(1, "out")}
    run = JobRun(kafka, name, tmp_path / "home", JOBS / "cores.py", params)
    yield run
    run.end()


@pytest.mark.story
@pytest.mark.timeout(400)
def test_a_restart_with_other_cores(kafka: KafkaSettings, run: JobRun) -> None:
    feeder = Feeder(kafka, run.params["input"], 3)
    feeder.burst(300)
    # Both slots finish a lane before the third is begun.
    first = run.start("lane-begun,lane=2,replay=False:kill")
    first.died()
    before = [json.loads(message.value() or b"{}") for message in read_committed(kafka, run.params["output"])]
    assert before, "some lanes are published"

    run.spec["master"] = "local[4]"
    second = run.start()
    eventually(lambda: caught_up(run, run.params["output"], feeder.sent), "the epoch is repeated", timeout_s=90)
    feeder.burst(30)
    eventually(lambda: caught_up(run, run.params["output"], feeder.sent), "it goes on", timeout_s=90)
    second.stop()

    records = [json.loads(message.value() or b"{}") for message in read_committed(kafka, run.params["output"])]
    assert Counter(record["word"] for record in records) == Counter(word for _, word in feeder.sent)
    assert {record["lane"] for record in records} == set(range(LANES)), "as wide as the first checkpoint says"
    replay = next(event for event in run.told("epoch") if event["replay"])
    assert replay["skipped_lanes"] >= 1
    assert replay["diverged_lanes"] == 0
    assert replay["replayed"] >= len(before)
    assert len({record["draw"] for record in records}) == len({record["lot"] for record in records}) == len(records)
    eventually(lambda: ends_agree(kafka, run.params["output"]), "no transaction is open")
