"""Rescales in a new process that has not run a query yet. A fault kills the process at each point of the rescale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from drivers import Feeder, JobRun, expected_counts, final_counts
from stamped_job import TIMEOUT_S

from clonos.faults import RESCALE_POINTS
from clonos.settings import KafkaSettings
from clonos.testing.harness import PlatformJob, Stack, eventually

_COUNTED = """
from contextlib import ExitStack
from pathlib import Path

import clonos
from clonos import faults
from pyspark.sql import functions as F

ACTIVE = ExitStack()


@clonos.job(name="counted")
def counted(ctx):
    # The first process that finds the file of a fault arms it, and renames the file.
    for armed in Path(ctx.params["armed"]).glob("*.fault"):
        text = armed.read_text()
        armed.rename(armed.with_suffix(".armed"))
        ACTIVE.enter_context(faults.injecting(text, Path(ctx.params["armed"]) / "triggered"))
        break
    words = ctx.source(ctx.params["input"]).select(F.col("value").cast("string").alias("word"))
    counts = words.groupBy(F.substring("word", 1, 1).alias("letter")).count()
    value = F.to_json(F.struct("letter", "count")).alias("value")
    ctx.sink(counts.select(F.col("letter").alias("key"), value), topic=ctx.params["output"], mode="update")
"""


@pytest.fixture
def run(kafka: KafkaSettings, name: str, make_topic: Callable[..., str], tmp_path: Path) -> Iterator[JobRun]:
    params = {"input": make_topic(3, "in"), "output": make_topic(2, "out"), "armed": str(tmp_path / "armed")}
    (tmp_path / "job.py").write_text(_COUNTED)
    run = JobRun(kafka, name, tmp_path / "home", tmp_path / "job.py", params, {"shufflePartitions": 2})
    yield run
    run.end()


@pytest.mark.turn
@pytest.mark.timeout(900)
@pytest.mark.chaos(fault="SIGKILL at each point of a rescale", target="driver", topology="clonos run, stateful job")
def test_a_new_process_rescales(kafka: KafkaSettings, run: JobRun) -> None:
    output, feeder = run.params["output"], Feeder(kafka, run.params["input"], 3)

    def await_counts() -> None:
        eventually(lambda: final_counts(kafka, output) == expected_counts(feeder.sent), "all is counted", timeout_s=120)

    feeder.burst(100)
    driver = run.start()
    await_counts()
    driver.stop_gracefully()
    run.spec["shufflePartitions"] = 5
    for point in RESCALE_POINTS:
        feeder.burst(50)
        driver = run.start(f"{point}:kill")
        driver.await_fault(point)
        driver.await_kill()
    final = run.start()
    await_counts()
    final.stop_gracefully()
    assert [event["partitions"] for event in run.events_of("rescaled")] == [5]
    assert run.events_of("restart") == []


@pytest.mark.turn
@pytest.mark.embedded
@pytest.mark.timeout(900)
@pytest.mark.chaos(fault="SIGKILL at each point of a rescale", target="driver", topology="clonos up, stateful job")
def test_a_rescale_by_the_platform_survives_each_kill(stack: Stack, tmp_path: Path) -> None:
    stack.up()
    for topic in ("in", "out"):
        stack.cli("kafka", "create", topic, "--partitions", "2")
    feeder = Feeder(stack.kafka, "in", 2)

    def await_counts(description: str) -> None:
        job.until(lambda: final_counts(stack.kafka, "out") == expected_counts(feeder.sent), description, TIMEOUT_S)

    folder, armed = tmp_path / "job", tmp_path / "armed"
    folder.mkdir()
    armed.mkdir()
    (folder / "job.py").write_text(_COUNTED)

    def write(partitions: int) -> None:
        params = {"input": "in", "output": "out", "armed": str(armed)}
        spec = {"main": "job.py", "params": params, "shufflePartitions": partitions, "driver": {"memory": "512m"}}
        document = {"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": "counted"}, "spec": spec}
        (folder / "job.yaml").write_text(yaml.safe_dump(document))

    write(2)
    stack.cli("submit", str(folder))
    job = PlatformJob(stack.client, "counted")
    feeder.burst(100)
    await_counts("the first records are counted")
    stack.cli("job", "stop", "counted")
    write(5)
    for number, point in enumerate(RESCALE_POINTS):
        (armed / f"{number}.fault").write_text(f"{point}:kill")
    feeder.burst(50)
    stack.run("apply", str(folder))  # it reports the first driver, which is killed
    stack.run("job", "start", "counted")
    await_counts("the rescaled job counts")
    assert sorted((armed / "triggered").read_text().split()) == sorted(RESCALE_POINTS)
    lines = stack.client.jobs.logs("counted", tail=500).lines
    assert not any("could not be repartitioned" in line for line in lines)
    feeder.burst(50)
    await_counts("it continues")
