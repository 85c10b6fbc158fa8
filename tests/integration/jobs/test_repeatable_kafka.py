"""A query without input waits at the broker: a record ends the wait, and so does a stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener

from clonos.driver import running as running_module
from clonos.driver.driver import Driver
from clonos.driver.options import RunOptions
from clonos.errors import SpecError
from clonos.jobs.context import JobContext
from clonos.jobs.definition import Job, JobFunction
from clonos.jobs.spec import JobSpec, Metadata, Spec
from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos.spark import source_streams
from clonos.telemetry.events import Events
from clonos.testing.harness import eventually, read_committed

MakeTopic = Callable[..., str]
_DEADLINE_S = 60.0


class IdleRounds(StreamingQueryListener):
    """Counts the rounds without input for Spark."""

    def __init__(self) -> None:
        self.count = 0
        self.above = threading.Event()
        self.limit = 0

    def onQueryStarted(self, event: Any) -> None: ...  # noqa: N802

    def onQueryProgress(self, event: Any) -> None: ...  # noqa: N802

    def onQueryTerminated(self, event: Any) -> None: ...  # noqa: N802

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        self.count += 1
        if self.limit and self.count > self.limit:
            self.above.set()

    def few(self, seconds: float) -> bool:
        """Whether at most three events come in this time. A query that does not wait has a hundred rounds a second."""
        self.limit = self.count + 3
        self.above.clear()
        return not self.above.wait(seconds)


@pytest.fixture
def idle(spark: SparkSession) -> Iterator[IdleRounds]:
    setting = "spark.sql.streaming.noDataProgressEventInterval"
    spark.conf.set(setting, "0")  # an event for each round
    rounds = IdleRounds()
    spark.streams.addListener(rounds)
    yield rounds
    spark.streams.removeListener(rounds)
    spark.conf.unset(setting)


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten minutes: anything that happens within a test's deadline did not wait."""
    monkeypatch.setattr(source_streams, "_WAIT_MS", 600_000)
    monkeypatch.setattr(running_module, "_SETTLE_S", 600.0)  # a stop waits this long for a trigger that does not end


@contextmanager
def running(
    spark: SparkSession, kafka: KafkaSettings, home: Path, function: JobFunction, name: str, **spec: Any
) -> Iterator[Driver]:
    """A driver in a thread; afterwards it must stop within the deadline, without a failure."""
    job = Job(function, JobSpec(metadata=Metadata(name=name), spec=Spec.model_validate(spec)), "1")
    driver = Driver(job, spark, kafka, Events(name, None, []), RunOptions(checkpoint=str(home / "checkpoint")))
    failures: list[BaseException] = []

    def run() -> None:
        try:
            driver.run()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield driver
    finally:
        driver.stop()
        thread.join(_DEADLINE_S)
    assert not thread.is_alive()
    assert failures == []


def send(kafka: KafkaSettings, topic: str, value: str, partition: int = 0) -> None:
    producer = Producer(client_config(kafka))
    producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0


def values(kafka: KafkaSettings, topic: str) -> list[str]:
    return sorted((record.value() or b"").decode() for record in read_committed(kafka, topic))


def await_records(kafka: KafkaSettings, topic: str, count: int) -> None:
    eventually(lambda: len(values(kafka, topic)) == count, f"{count} records are published", timeout_s=_DEADLINE_S)


def test_an_idle_query_waits_until_a_record_comes(
    spark: SparkSession, kafka: KafkaSettings, tmp_path: Path, name: str, make_topic: MakeTopic, idle: IdleRounds
) -> None:
    source, output = make_topic(2, "in"), make_topic(1, "out")

    def define(ctx: JobContext) -> None:
        ctx.sink(ctx.source(source).select("value"), topic=output, name="out")

    with running(spark, kafka, tmp_path, define, name):
        for number in range(4):
            send(kafka, source, f"{number}", partition=number % 2)
            await_records(kafka, output, number + 1)
        # Spark may deliver the events of earlier rounds late.
        eventually(lambda: idle.few(1.0), "the query asks for no offsets without input", timeout_s=_DEADLINE_S)
        send(kafka, source, "last")
        eventually(lambda: "last" in values(kafka, output), "the record ends the wait", timeout_s=_DEADLINE_S)


def test_a_query_with_two_sources_waits_for_none(
    spark: SparkSession,
    kafka: KafkaSettings,
    tmp_path: Path,
    name: str,
    make_topic: MakeTopic,
    idle: IdleRounds,
) -> None:
    first, second, output = make_topic(1, "in"), make_topic(1, "in"), make_topic(1, "out")

    def define(ctx: JobContext) -> None:
        ctx.sink(ctx.source(first).union(ctx.source(second)).select("value"), topic=output, name="out")

    with running(spark, kafka, tmp_path, define, name):
        for number, topic in enumerate((first, second, second, first)):
            idle.above.clear()
            idle.limit = idle.count + 3
            assert idle.above.wait(_DEADLINE_S), "the query is idle"
            send(kafka, topic, f"{number}")
            await_records(kafka, output, number + 1)


def test_a_window_closes_without_further_input(
    spark: SparkSession, kafka: KafkaSettings, tmp_path: Path, name: str, make_topic: MakeTopic
) -> None:
    """After the epoch that raises the watermark, Spark runs one without input, which publishes the window."""
    source, output = make_topic(1, "in"), make_topic(1, "out")

    def define(ctx: JobContext) -> None:
        at = F.timestamp_seconds(F.col("value").cast("string").cast("long"))
        rows = ctx.source(source).select(at.alias("at")).withWatermark("at", "1 second")
        counts = rows.groupBy(F.window("at", "10 seconds")).count()
        ctx.sink(counts.select(F.col("count").cast("string").alias("value")), topic=output, name="out")

    with running(spark, kafka, tmp_path, define, name):
        send(kafka, source, "100")
        send(kafka, source, "200")
        eventually(lambda: values(kafka, output) == ["1"], "the first window is published", timeout_s=_DEADLINE_S)


def test_a_job_that_ends_with_its_input_does_not_wait(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    source, output = make_topic(1, "in"), make_topic(1, "out")
    send(kafka, source, "0")
    run_job(lambda ctx: ctx.sink(ctx.source(source).select("value"), topic=output, name="out"), name)
    assert values(kafka, output) == ["0"]


def test_a_query_with_an_interval_does_not_wait(
    spark: SparkSession, kafka: KafkaSettings, tmp_path: Path, name: str, make_topic: MakeTopic, idle: IdleRounds
) -> None:
    """A wait would move the start of its next epoch."""
    source, output = make_topic(1, "in"), make_topic(1, "out")

    def define(ctx: JobContext) -> None:
        ctx.sink(ctx.source(source).select("value"), topic=output, name="out", every="100ms")

    with running(spark, kafka, tmp_path, define, name):
        for number in range(2):
            send(kafka, source, f"{number}")
            await_records(kafka, output, number + 1)
            idle.above.clear()
            idle.limit = idle.count + 3
            assert idle.above.wait(_DEADLINE_S), "the query asks for offsets at its interval"


def test_the_setting_is_checked_and_the_session_keeps_its_own(spark: SparkSession) -> None:
    setting = "spark.clonos.longPollMs"
    with source_streams.long_polls(spark):
        assert source_streams.longest_wait_ms(spark) == 600_000
    assert source_streams.longest_wait_ms(spark) == 0
    spark.conf.set(setting, "200ms")
    try:
        with source_streams.long_polls(spark), pytest.raises(SpecError, match="without a unit"):
            source_streams.longest_wait_ms(spark)
        assert spark.conf.get(setting) == "200ms"
    finally:
        spark.conf.unset(setting)


def test_a_backlog_is_read_in_several_epochs(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    source, out = make_topic(3, "in"), make_topic(1, "out")
    producer = Producer(client_config(kafka))
    sent = [f"r{number}" for number in range(9_000)]
    for number, text in enumerate(sent):
        producer.produce(source, text, partition=number % 3)
    assert producer.flush(30) == 0

    def job(ctx: JobContext) -> None:
        ctx.sink(ctx.source(source).select(F.col("value").cast("string")), topic=out, name="out")

    run_job(job, name)
    assert values(kafka, out) == sorted(sent)
    epochs = [event for event in run_job.events_of("epoch") if event["records_in"]]
    read = [event["records_in"] for event in epochs]
    assert read[0] <= 2_000, "the bound of the first epoch"
    if epochs[0]["duration_ms"] < 3_500:  # the bound follows the speed of the machine
        assert read[1] > 2_000, "its growth"
    else:
        print(f"the first epoch took {epochs[0]['duration_ms']} ms: its bound need not grow")
    assert sum(read) == 9_000


def test_a_limit_of_the_user_is_the_limit(kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    for number in range(9):
        send(kafka, source, f"r{number}")

    def job(ctx: JobContext) -> None:
        rows = ctx.source(source, max_per_epoch=4).select(F.col("value").cast("string"))
        ctx.sink(rows, topic=out, name="out")

    run_job(job, name)
    assert [event["records_in"] for event in run_job.events_of("epoch") if event["records_in"]] == [4, 4, 1]
