"""A graceful stop waits for the epoch in progress, and reports an epoch that did not finish in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import clonos
from clonos.driver.options import RunOptions
from clonos.driver.states import DriverState
from clonos.errors import StopTimedOut
from clonos.jobs.context import JobContext
from clonos.jobs.definition import JobFunction
from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, read_committed
from support.driver_thread import DriverThread

MakeTopic = Callable[..., str]
_DEADLINE_S = 120.0


class GatedJob:
    """A job whose epoch begins, and does not end before the gate opens."""

    def __init__(self, source: str, out: str, folder: Path) -> None:
        self.out = out
        self.began, self.gate = folder / "began", folder / "gate"
        began, gate = str(self.began), str(self.gate)

        @clonos.udf("string")
        def wait(value: str) -> str:
            import time
            from pathlib import Path

            Path(began).touch()
            while not Path(gate).exists():
                time.sleep(0.01)
            return value

        def job(ctx: JobContext) -> None:
            rows = ctx.source(source).select(wait(F.col("value").cast("string")).alias("value"))
            ctx.sink(rows, topic=out, name="out")

        self.function: JobFunction = job


def stopping(spark: SparkSession, kafka: KafkaSettings, job: GatedJob, name: str, options: RunOptions) -> DriverThread:
    """A driver with an epoch in progress and a stop request."""
    thread = DriverThread(spark, kafka, job.function, name, options)
    begun = eventually(lambda: job.began.exists() or thread.failure, "an epoch is in progress", timeout_s=_DEADLINE_S)
    assert begun is True
    thread.driver.stop()
    return thread


@pytest.fixture
def job(kafka: KafkaSettings, make_topic: MakeTopic, tmp_path: Path) -> GatedJob:
    source, out = make_topic(1), make_topic(1)
    producer = Producer(client_config(kafka))
    for number in range(5):
        producer.produce(source, f"r{number}", partition=0)
    assert producer.flush(30) == 0
    return GatedJob(source, out, tmp_path)


def published(kafka: KafkaSettings, job: GatedJob) -> Counter[str]:
    return Counter((record.value() or b"").decode() for record in read_committed(kafka, job.out))


ALL = Counter(f"r{number}" for number in range(5))


def test_a_stop_waits_for_the_epoch(
    spark: SparkSession, kafka: KafkaSettings, job: GatedJob, name: str, tmp_path: Path
) -> None:
    thread = stopping(spark, kafka, job, name, RunOptions(checkpoint=str(tmp_path / "checkpoint")))
    eventually(lambda: thread.driver.state is DriverState.STOPPING, "the driver stops", timeout_s=_DEADLINE_S)
    assert not published(kafka, job)
    job.gate.touch()
    thread.join()
    assert thread.failure is None
    assert thread.driver.state is DriverState.STOPPED
    assert published(kafka, job) == ALL


def test_an_epoch_that_does_not_finish_in_time_is_reported_and_replayed(
    spark: SparkSession, kafka: KafkaSettings, job: GatedJob, name: str, tmp_path: Path, run_job: Any
) -> None:
    checkpoint = tmp_path / "checkpoint"
    thread = stopping(spark, kafka, job, name, RunOptions(checkpoint=str(checkpoint), stop_timeout_s=0.5))
    thread.join()
    job.gate.touch()
    assert isinstance(thread.failure, StopTimedOut)
    assert "The epoch of out did not finish within 0.5 s." in thread.failure.what
    assert [event["error"] for event in thread.events if event["event"] == "failed"] == ["stop-timed-out"]
    assert not published(kafka, job)
    run_job(job.function, name, code="1")
    assert published(kafka, job) == ALL


def test_each_sink_begins_its_epochs_at_its_own_interval(
    spark: SparkSession, kafka: KafkaSettings, make_topic: MakeTopic, name: str, tmp_path: Path
) -> None:
    """While one sink waits for an hour, the other publishes; a stop waits for neither, and a start continues both."""
    source, often, rarely = make_topic(1, "in"), make_topic(1, "often"), make_topic(1, "rarely")

    def function(ctx: JobContext) -> None:
        rows = ctx.source(source).select("value")
        ctx.sink(rows, topic=often, name="often", every="0s")
        ctx.sink(rows, topic=rarely, name="rarely")

    def feed(*numbers: int) -> None:
        producer = Producer(client_config(kafka))
        for number in numbers:
            producer.produce(source, f"r{number}", partition=0)
        assert producer.flush(30) == 0

    def words(topic: str) -> Counter[str]:
        return Counter((record.value() or b"").decode() for record in read_committed(kafka, topic))

    options = RunOptions(checkpoint=str(tmp_path / "checkpoint"))
    first, both = Counter({"r0": 1}), Counter({"r0": 1, "r1": 1})
    feed(0)
    thread = DriverThread(spark, kafka, function, name, options, interval="1h")
    thread.await_(lambda: words(often) == words(rarely) == first, "both have published the first record")
    feed(1)
    thread.await_(lambda: words(often) == both, "the sink without an interval has published the second record")
    assert words(rarely) == first
    thread.driver.stop()
    thread.join(60)
    assert thread.failure is None
    thread = DriverThread(spark, kafka, function, name, options, interval="1h")
    thread.await_(lambda: words(rarely) == both, "the other sink has published the second record")
    thread.driver.stop()
    thread.join(60)
    assert words(often) == both
