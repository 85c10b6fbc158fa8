"""Live queries: rivals, full memory, topics that are created again, and clusters and code that they cannot have.

`docs/testing.md` lists the protections of a step, and the test that fails without each.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from clonos import faults
from clonos.driver import live_epochs
from clonos.driver.live_epochs import LiveRunner, epochs_because
from clonos.driver.options import RunOptions
from clonos.errors import SinkTopicDeleted, SourceOffsetsExpired, SpecError, Superseded
from clonos.faults import STEP_POINTS
from clonos.jobs.context import JobContext, Query
from clonos.jobs.spec import Trigger
from clonos.kafka import client_config
from clonos.log.claiming import claim
from clonos.log.reading import LogReader
from clonos.settings import KafkaSettings
from clonos.spark.internals import jvm_of
from clonos.testing.harness import eventually, has_open_transaction, read_committed
from clonos_sinks.kafka import KafkaSink
from clonos_sinks.kafka import live as live_sink
from clonos_sinks.kafka.live import LANES
from support.brokers.interface import KafkaCluster
from support.brokers.older import downgrade_transactions
from support.copy_job import Copy
from support.driver_thread import DriverThread

Live = Callable[..., DriverThread]
MakeTopic = Callable[..., str]


def events(thread: DriverThread, event: str) -> list[dict[str, object]]:
    return [fields for fields in thread.events if fields["event"] == event]


def stop(thread: DriverThread) -> None:
    thread.driver.stop()
    thread.join(60)
    assert thread.failure is None


# Steps


@pytest.mark.parametrize("python", [False, True])
def test_readers_see_whole_records(kafka: KafkaSettings, copy: Copy, live: Live, python: bool) -> None:
    """While the rows of a record are computed, steps of other records are published."""
    rows_of_a_record = 60

    @F.arrow_udf("string")  # type: ignore[call-overload, untyped-decorator]
    def slow(values: pa.Array) -> pa.Array:
        time.sleep(0.02)  # steps follow each other faster
        return values

    def function(ctx: JobContext) -> None:
        rows = ctx.source(copy.source).select("key", F.col("value").cast("string").alias("value"))
        rows = rows.select("key", "value", F.explode(F.sequence(F.lit(1), F.lit(rows_of_a_record))).alias("row"))
        if python:
            rows = rows.withColumn("value", slow("value"))
        else:
            rows = rows.where(F.expr("reflect('java.lang.Thread', 'sleep', 1L)").isNotNull())
        ctx.sink(rows.select("key", "value"), topic=copy.out, name="out")

    copy.send_numbers(25)
    thread = live(function)
    looks: list[Counter[str]] = []

    def all_published() -> bool:
        looks.append(Counter(value for _, value in copy.published()))
        return looks[-1].keys() == set(copy.sent)

    thread.await_(all_published, "all is published")
    stop(thread)
    assert {count for look in looks for count in look.values()} == {rows_of_a_record}


def test_a_step_begins_after_the_commit_of_the_last_one_in_the_next_lane(copy: Copy, live: Live) -> None:
    reached: list[tuple[str, int]] = []
    begun = threading.Event()

    def reach(point: str, lane: int) -> None:
        if (point, lane) == ("step-begun", 1):
            begun.set()
        if (point, lane) == ("step-committed", 0) and not begun.is_set():
            copy.send_numbers(3)
            begun.wait(0.5)  # it must not be
        reached.append((point, lane))

    with contextlib.ExitStack() as acting:
        for point, lane in itertools.product(STEP_POINTS, range(LANES)):
            acting.enter_context(faults.acting(point, partial(reach, point, lane), lane=lane))
        copy.send_numbers(3)
        thread = live(copy.function)
        for _ in range(4):
            thread.await_(copy.is_published, "the records are published")
            copy.send_numbers(3)
        thread.await_(copy.is_published, "the last records are published")
        stop(thread)
    assert copy.faults() == {}
    steps = len(reached) // len(STEP_POINTS)
    assert steps > LANES
    assert reached == [(point, step % LANES) for step in range(steps) for point in STEP_POINTS]


# Another driver


@pytest.mark.parametrize("stale", [False, True], ids=["tails", "offset of the marker"])
def test_a_claim_before_the_lanes_are_opened_is_noticed(
    kafka: KafkaSettings, copy: Copy, live: Live, name: str, monkeypatch: pytest.MonkeyPatch, stale: bool
) -> None:
    """The driver fences the new owner then, so only the tails show the claim. With `stale` tails, which a leader has
    that Kafka replaced, the offset of the first marker does.
    """
    if stale:
        monkeypatch.setattr(live_sink, "require_owner", lambda *_: None)
    claims = iter((lambda: claim(kafka, name),))
    copy.send_numbers(9)
    with faults.acting("plan-committed", lambda: next(claims, object)()):
        thread = live(copy.function)
        thread.join(60)
    assert isinstance(thread.failure, Superseded)
    assert copy.published() == []
    assert not has_open_transaction(kafka, copy.out)
    reader = LogReader(kafka, copy.out)
    try:
        written = [reader.bounds(partition) != (0, 0) for partition in range(2)]
    finally:
        reader.close()
    assert any(written) is stale, "rows of a transaction are sent after the tails are read"


# Memory


def test_tasks_wait_while_many_bytes_wait_for_a_step(spark: SparkSession, copy: Copy, live: Live) -> None:
    def function(ctx: JobContext) -> None:
        rows = ctx.source(copy.source).select("key", F.col("value").cast("string").alias("value"))
        long = F.concat_ws(" ", "value", F.repeat(F.lit("x"), 40_000))
        ctx.sink(rows.withColumn("value", long), topic=copy.out, name="out", producer={"compression.type": "lz4"})

    threads = jvm_of(spark).java.lang.management.ManagementFactory.getThreadMXBean()
    released = threading.Event()

    def waits() -> bool:
        stacks = (thread.toString() for thread in threads.dumpAllThreads(False, False))
        return any("clonos.StepPublisher.await" in stack and "clonos.StepPublisher.add" in stack for stack in stacks)

    copy.send_numbers(1_000)
    with faults.acting("step-begun", lambda: released.wait(300)):
        thread = live(function)
        thread.await_(waits, "the task waits")
        released.set()
    thread.await_(copy.is_published, "all is published")
    stop(thread)
    assert copy.faults() == {}


def test_rows_of_a_task_that_failed_are_not_published_later(copy: Copy, live: Live, spark: SparkSession) -> None:
    """Spark's threads run many tasks. This one fails between two rows of a record."""
    value, system = F.col("value").cast("string"), jvm_of(spark).java.lang.System

    def function(ctx: JobContext) -> None:
        # Spark computes it for each row: the second row of a record fails.
        good = F.expr("cast(reflect('java.lang.System', 'getProperty', concat('clonos.tests.', copy)) as int)")
        rows = ctx.source(copy.source).select("key", value.alias("value"), F.explode(F.array(F.lit("0"), F.lit("1"))))
        rows = rows.withColumnRenamed("col", "copy").where(good + F.length("value") > 0).where("copy = '0'")
        ctx.sink(rows.select("key", "value"), topic=copy.out, name="out")

    system.setProperty("clonos.tests.0", "0")
    system.setProperty("clonos.tests.1", "no number")
    copy.send_numbers(1)
    failed = live(function)
    failed.join(60)
    assert "CAST_INVALID_INPUT" in str(failed.failure)
    assert copy.published() == []
    system.setProperty("clonos.tests.1", "0")
    copy.send_numbers(20)
    thread = live(function)
    thread.await_(copy.is_published, "all is published")
    stop(thread)
    assert copy.faults() == {}


# The log


def test_truncation_fences_no_producer_of_a_live_query(
    kafka: KafkaSettings, copy: Copy, live: Live, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those of the query whose epoch has ended, nor those of another one, which publishes until then."""
    monkeypatch.setattr(LiveRunner, "epoch_s", 1)
    monkeypatch.setattr(live_epochs, "_STEPS_RETAINED", 0)
    other = make_topic(1, "other")

    def function(ctx: JobContext) -> None:
        copy.function(ctx)
        ctx.sink(ctx.source(copy.source).select("key", "value"), topic=other, name="other")

    thread = live(function)

    def truncated_often() -> bool:
        copy.send_numbers(2)
        return Counter(str(fields["query"]) for fields in events(thread, "truncated")).keys() >= {"out", "other"}

    thread.await_(truncated_often, "both queries have truncated their lanes")
    copy.send_numbers(2)
    thread.await_(copy.is_published, "all is published")
    thread.await_(lambda: len(read_committed(kafka, other)) >= len(copy.sent), "also by the other query")
    stop(thread)
    assert copy.faults() == {}
    assert Counter((record.value() or b"").decode() for record in read_committed(kafka, other)) == Counter(copy.sent)
    assert events(thread, "restart") == []


# Topics


@pytest.mark.turn
def test_a_source_topic_that_is_created_again_stops_a_live_query(
    copy: Copy, live: Live, swap: Callable[[str, int], None]
) -> None:
    """No record of the new topic is published under an offset of the old one."""
    copy.send_numbers(30)
    thread = live(copy.function)
    thread.await_(copy.is_published, "the old records are published")
    old = copy.published()
    swap(copy.source, 3)
    copy.connect()
    copy.send_numbers(90)  # more than the old topic had: all offsets exist
    thread.join(90)
    assert isinstance(thread.failure, SourceOffsetsExpired)
    assert "deleted and created again" in thread.failure.what
    assert copy.published() == old
    again = live(copy.function, new_lineage=True)
    again.await_(copy.is_published, "the new lineage reads the new topic")
    stop(again)
    assert copy.faults() == {}


@pytest.mark.turn
def test_a_source_topic_that_is_deleted_stops_a_live_query(kafka: KafkaSettings, copy: Copy, live: Live) -> None:
    copy.send_numbers(30)
    thread = live(copy.function)
    thread.await_(copy.is_published, "the records are published")
    admin = AdminClient(client_config(kafka))
    admin.delete_topics([copy.source])[copy.source].result(60)
    thread.join(90)
    assert isinstance(thread.failure, SourceOffsetsExpired), thread.failure
    assert copy.faults() == {}


@pytest.mark.turn
def test_a_sink_topic_that_is_created_again_gets_the_later_records(
    copy: Copy, live: Live, swap: Callable[[str, int], None]
) -> None:
    """The transaction of the step that met the new topic is aborted."""
    copy.send_numbers(30)
    thread = live(copy.function)
    thread.await_(copy.is_published, "the first records are published")
    swap(copy.out, 2)
    old = copy.sent
    copy.sent = []
    copy.send(*(f"r{number}" for number in range(len(old), len(old) + 30)))
    thread.await_(copy.is_published, "the new topic has the later records")
    assert [fields["topic"] for fields in events(thread, "topic-created-again")] == [copy.out]
    stop(thread)
    assert copy.faults() == {}


@pytest.mark.turn
def test_a_sink_topic_that_is_deleted_stops_a_live_query(kafka: KafkaSettings, copy: Copy, live: Live) -> None:
    """While records arrive; Kafka's producer would wait for the topic."""
    copy.send_numbers(3)
    thread = live(copy.function)
    thread.await_(copy.is_published, "the first records are published")
    admin = AdminClient(client_config(kafka))
    admin.delete_topics([copy.out])[copy.out].result(60)

    def stopped() -> bool:
        copy.send_numbers(3)
        return thread.failure is not None

    eventually(stopped, "the job stops", poll_s=0.2)
    assert isinstance(thread.failure, SinkTopicDeleted)
    assert events(thread, "restart") == []
    assert copy.out not in admin.list_topics(timeout=60).topics


# What cannot run live


@pytest.mark.turn
def test_brokers_with_older_transactions_have_epochs(
    spark: SparkSession,
    start_cluster: Callable[[int], AbstractContextManager[KafkaCluster]],
    name: str,
    tmp_path: Path,
) -> None:
    with start_cluster(1) as cluster:
        kafka = cluster.kafka
        downgrade_transactions(spark, kafka, 1)

        admin = AdminClient(client_config(kafka))

        def make_topic(partitions: int, name: str) -> str:
            admin.create_topics([NewTopic(name, partitions)])[name].result(60)
            return name

        copy = Copy(kafka, make_topic)

        def start(mode: str) -> DriverThread:
            options = RunOptions(checkpoint=str(tmp_path / "checkpoint"))
            return DriverThread(spark, kafka, copy.function, name, options, trigger={"mode": mode})

        refused = start("live")
        refused.join(60)
        assert isinstance(refused.failure, SpecError)
        because = "the brokers have version 1 of transactions"
        assert because in refused.failure.what
        copy.send_numbers(9)
        thread = start("auto")
        try:
            thread.await_(copy.is_published, "it runs in epochs")
            (mode,) = events(thread, "mode")
            assert (mode["live"], because in str(mode["because"])) == (False, True)
        finally:
            thread.driver.stop()
            thread.join(60)
        assert copy.faults() == {}


TIMES = (
    *("current_timestamp()", "now()", "current_date()", "curdate()", "localtimestamp()", "current_time()"),
    *("unix_timestamp()", "cast('now' as timestamp)", "cast('today' as date)", "cast('yesterday' as timestamp_ntz)"),
)


def test_what_spark_computes_once_for_each_epoch_is_refused(
    spark: SparkSession, kafka: KafkaSettings, make_topic: MakeTopic
) -> None:
    """In any operator. A time that comes with the record is not."""
    topic = make_topic(1)
    read = spark.readStream.format("clonos.RepeatableKafka").option("subscribe", topic)
    rows = read.option("kafka.bootstrap.servers", kafka.bootstrap_servers).load()

    def because(frame: DataFrame) -> str:
        return epochs_because(Query(KafkaSink("out", topic=topic), frame), Trigger(), kafka, queries=1)

    assert because(rows.select(F.expr("date_add(cast(timestamp as date), 1)").cast("string").alias("value"))) == ""
    runs = {
        text
        for text in TIMES
        for frame in (
            rows.select(F.expr(text).cast("string").alias("value")),
            rows.where(F.expr(f"cast({text} as string) > '2'")).select("value"),
        )
        if "computes once for each epoch" not in because(frame)
    }
    assert runs == set()
