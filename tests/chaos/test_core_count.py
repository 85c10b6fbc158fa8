"""A job killed with some lanes committed continues on a different number of cores: same tasks, same answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from drivers import JOBS, Feeder, JobRun, caught_up

from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, has_open_transaction, read_committed

pytestmark = [pytest.mark.full]

LANES = 4  # Spark's default here: twice the cores of the first start


@pytest.fixture
def run(kafka: KafkaSettings, name: str, make_topic: Callable[..., str], tmp_path: Path) -> Iterator[JobRun]:
    params = {"input": make_topic(3, "in"), "output": make_topic(1, "out")}
    run = JobRun(kafka, name, tmp_path / "home", JOBS / "cores.py", params)
    yield run
    run.end()


@pytest.mark.chaos(
    fault="SIGKILL at a protocol point", target="driver", topology="clonos run, other core count after the restart"
)
def test_a_restart_with_other_cores(kafka: KafkaSettings, run: JobRun) -> None:
    feeder = Feeder(kafka, run.params["input"], 3)
    feeder.burst(300)
    # Both slots finish a lane before the third is begun.
    first = run.start("lane-begun,lane=2,replay=False:kill")
    first.await_kill()
    before = [json.loads(message.value() or b"{}") for message in read_committed(kafka, run.params["output"])]
    assert before, "some lanes are published"

    run.spec["master"] = "local[4]"
    second = run.start()
    eventually(lambda: caught_up(run, run.params["output"], feeder.sent), "the epoch is repeated", timeout_s=90)
    feeder.burst(30)
    eventually(lambda: caught_up(run, run.params["output"], feeder.sent), "the job continues", timeout_s=90)
    second.stop_gracefully()

    records = [json.loads(message.value() or b"{}") for message in read_committed(kafka, run.params["output"])]
    assert Counter(record["word"] for record in records) == Counter(word for _, word in feeder.sent)
    assert {record["lane"] for record in records} == set(range(LANES)), "the width that the first checkpoint records"
    replay = next(event for event in run.events_of("epoch") if event["replay"])
    assert replay["skipped_lanes"] >= 1
    assert replay["diverged_lanes"] == 0
    assert replay["replayed_determinants"] >= len(before)
    assert len({record["draw"] for record in records}) == len({record["lot"] for record in records}) == len(records)
    eventually(lambda: not has_open_transaction(kafka, run.params["output"]), "no transaction is open")
