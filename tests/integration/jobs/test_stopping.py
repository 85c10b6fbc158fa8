"""A graceful stop waits for the epoch in progress, and reports an epoch that did not finish in time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import clonos
from clonos.driver.driver import Driver
from clonos.driver.options import RunOptions
from clonos.driver.states import DriverState
from clonos.errors import StopTimedOut
from clonos.jobs.context import JobContext
from clonos.jobs.definition import Job, JobFunction
from clonos.jobs.spec import JobSpec, Metadata, Spec
from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos.telemetry.events import Event, Events
from clonos.testing.harness import eventually, read_committed

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


class Stopping:
    """A driver in a thread, with an epoch in progress and a stop request."""

    def __init__(
        self, spark: SparkSession, kafka: KafkaSettings, job: GatedJob, name: str, options: RunOptions
    ) -> None:
        spec = JobSpec(metadata=Metadata(name=name), spec=Spec.model_validate({}))
        self.events: list[Event] = []
        events = Events(name, None, [self.events.append])
        self.driver = Driver(Job(job.function, spec, "1"), spark, kafka, events, options)
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        begun = eventually(lambda: job.began.exists() or self.failure, "an epoch is in progress", timeout_s=_DEADLINE_S)
        assert begun is True
        self.driver.stop()

    def _run(self) -> None:
        try:
            self.driver.run()
        except BaseException as failure:
            self.failure = failure

    def end(self) -> None:
        self.thread.join(_DEADLINE_S)
        assert not self.thread.is_alive()


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
    stopping = Stopping(spark, kafka, job, name, RunOptions(checkpoint=str(tmp_path / "checkpoint")))
    eventually(lambda: stopping.driver.state is DriverState.STOPPING, "the driver stops", timeout_s=_DEADLINE_S)
    assert not published(kafka, job)
    job.gate.touch()
    stopping.end()
    assert stopping.failure is None
    assert stopping.driver.state is DriverState.STOPPED
    assert published(kafka, job) == ALL


def test_an_epoch_that_does_not_finish_in_time_is_reported_and_replayed(
    spark: SparkSession, kafka: KafkaSettings, job: GatedJob, name: str, tmp_path: Path, run_job: Any
) -> None:
    checkpoint = tmp_path / "checkpoint"
    stopping = Stopping(spark, kafka, job, name, RunOptions(checkpoint=str(checkpoint), stop_timeout_s=0.5))
    stopping.end()
    job.gate.touch()
    assert isinstance(stopping.failure, StopTimedOut)
    assert "The epoch of out did not finish within 0.5 s." in stopping.failure.what
    assert [event["error"] for event in stopping.events if event["event"] == "failed"] == ["stop-timed-out"]
    assert not published(kafka, job)
    run_job(job.function, name, code="1")
    assert published(kafka, job) == ALL
