"""Topic, partition, key and value columns of a sink's DataFrame, and rows that Kafka always rejects, in real jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from clonos.errors import ClonosError, RecordRejected, SpecError, TopicMissing
from clonos.jobs.context import JobContext
from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos.spark.internals import jvm_of
from clonos.testing.harness import read_committed

pytestmark = pytest.mark.full

MakeTopic = Callable[..., str]
DELIVERIES = ("exactly-once", "atomic-epoch")


def feed(kafka: KafkaSettings, topic: str, count: int, partitions: int = 2) -> None:
    producer = Producer(client_config(kafka))
    for number in range(count):
        producer.produce(topic, f"{number}".encode(), partition=number % partitions)
    assert producer.flush(30) == 0


def job_with(source: str, shape: Callable[[DataFrame], DataFrame], topic: str | None = None, **sink: Any) -> Any:
    def job(ctx: JobContext) -> None:
        records = ctx.source(source).withColumn("n", F.col("value").cast("string").cast("int"))
        ctx.sink(shape(records), topic=topic, name="out", **sink)

    return job


def text(kafka: KafkaSettings, topic: str) -> list[tuple[int | None, str | None, str | None]]:
    return sorted(
        (
            (record.partition(), _text(record.key()), _text(record.value()))
            for record in read_committed(kafka, topic)
        ),
        key=repr,
    )  # fmt: skip


def _text(value: Any) -> str | None:
    return None if value is None else value.decode()


@pytest.mark.ci
@pytest.mark.parametrize("delivery", [*DELIVERIES, "at-least-once"])
def test_topic_partition_key_and_value_by_row(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, delivery: str
) -> None:
    """Half of the rows name a topic and a partition; some rows have no key, some are tombstones."""
    source, default, named = make_topic(2, "in"), make_topic(1, "default"), make_topic(3, "named")
    feed(kafka, source, 12)

    def shape(records: DataFrame) -> DataFrame:
        odd = F.col("n") % 2 == 1
        return records.select(
            F.when(odd, F.lit(named)).alias("topic"),
            F.when(odd, (F.col("n") % 3).cast("int")).alias("partition"),
            F.when(F.col("n") % 4 != 0, F.concat(F.lit("k"), F.col("n"))).alias("key"),
            F.when(F.col("n") % 6 != 0, F.col("value").cast("string")).alias("value"),
        )

    run_job(job_with(source, shape, default, delivery=delivery), name)
    expected: dict[str, list[tuple[int, str | None, str | None]]] = {default: [], named: []}
    for n in range(12):
        where = (named, n % 3) if n % 2 else (default, 0)
        expected[where[0]].append((where[1], f"k{n}" if n % 4 else None, f"{n}" if n % 6 else None))
    for topic in (default, named):
        assert text(kafka, topic) == sorted(expected[topic], key=repr)


REFUSED: list[tuple[str, dict[str, str], type[ClonosError], str]] = [
    ("unknown-topic", {"topic": "'nowhere'"}, TopicMissing, "nowhere"),
    ("unknown-partition", {"partition": "5"}, RecordRejected, "partition 5"),
    ("negative-partition", {"partition": "-1"}, RecordRejected, "partition -1"),
    ("timestamp-before-1970", {"timestamp": "timestamp '1969-01-01'"}, RecordRejected, "before 1970"),
    ("request-too-large", {"value": "repeat('x', 2000000)"}, RecordRejected, "max.message.bytes"),
]


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize(
    ("columns", "error", "says"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_one_bad_row_refuses_the_epoch_at_once(
    kafka: KafkaSettings,
    run_job: Any,
    name: str,
    make_topic: MakeTopic,
    columns: dict[str, str],
    error: type[ClonosError],
    says: str,
    delivery: str,
) -> None:
    """The last row of a lane is invalid: the lane publishes nothing, and no restart and no new topic follow."""
    source, out = make_topic(1, "in"), make_topic(2, "out")
    feed(kafka, source, 20, partitions=1)

    def shape(records: DataFrame) -> DataFrame:
        bad = F.col("n") == 19
        return records.select(
            F.when(bad, F.expr(columns.get("value", "'v'"))).otherwise(F.lit("v")).alias("value"),
            F.when(bad, F.expr(columns.get("topic", "null"))).cast("string").alias("topic"),
            F.when(bad, F.expr(columns.get("partition", "null"))).cast("int").alias("partition"),
            F.when(bad, F.expr(columns.get("timestamp", "null"))).cast("timestamp").alias("timestamp"),
        )

    with pytest.raises(error, match=says):
        run_job(job_with(source, shape, out, delivery=delivery), name)
    assert run_job.events_of("restart") == []
    assert read_committed(kafka, out) == []
    assert "nowhere" not in AdminClient(client_config(kafka)).list_topics(timeout=10).topics


def test_records_without_a_timestamp_get_one(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    """Kafka's source shows them as a millisecond before 1970."""
    source, out = make_topic(1, "in"), make_topic(1, "out")
    feed(kafka, source, 3, partitions=1)
    none = F.timestamp_millis(F.lit(-1)).alias("timestamp")
    run_job(job_with(source, lambda records: records.select("value", none), out), name)
    assert len(read_committed(kafka, out)) == 3
    assert all(record.timestamp()[1] > 1_700_000_000_000 for record in read_committed(kafka, out))


def test_a_row_without_any_topic(kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    feed(kafka, source, 4, partitions=1)

    def shape(records: DataFrame) -> DataFrame:
        return records.select(F.lit("v").alias("value"), F.when(F.col("n") < 3, F.lit(out)).alias("topic"))

    with pytest.raises(SpecError, match="A row names no topic"):
        run_job(job_with(source, shape), name)
    assert run_job.events_of("restart") == []
    assert read_committed(kafka, out) == []


@pytest.mark.ci
def test_a_refused_epoch_is_published_once_the_topic_takes_it(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    source, out = make_topic(1, "in"), make_topic(1, "out", max_message_bytes="1000")
    feed(kafka, source, 3, partitions=1)

    def shape(records: DataFrame) -> DataFrame:
        return records.select(F.repeat(F.lit("x"), 5000).alias("value"))

    with pytest.raises(RecordRejected) as refused:
        run_job(job_with(source, shape, out), name)
    assert "raise the topic's max.message.bytes to at least 5" in refused.value.hint
    admin = AdminClient(client_config(kafka))
    entry = ConfigEntry("max.message.bytes", "6000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, out, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(60)
    run_job(job_with(source, shape, out), name)
    assert [len(record.value() or b"") for record in read_committed(kafka, out)] == [5000] * 3


@pytest.mark.parametrize("delivery", [*DELIVERIES, "at-least-once"])
def test_batches_are_compressed_as_the_producer_option_says(
    kafka: KafkaSettings, spark: SparkSession, run_job: Any, name: str, make_topic: MakeTopic, delivery: str
) -> None:
    """The broker stores the producer's batches as they arrive."""
    source, plain, packed = make_topic(1, "in"), make_topic(1, "plain"), make_topic(1, "packed")
    feed(kafka, source, 500, partitions=1)

    def job(ctx: JobContext) -> None:
        rows = ctx.source(source).select(F.repeat(F.col("value").cast("string"), 100).alias("value"))
        for topic, compression in ((plain, "none"), (packed, "zstd")):
            producer = {"compression.type": compression, "linger.ms": "20"}
            ctx.sink(rows, topic=topic, name=compression, delivery=delivery, producer=producer)

    run_job(job, name)
    expected = sorted(f"{number}" * 100 for number in range(500))
    assert sorted(value or "" for _, _, value in text(kafka, plain)) == expected
    assert sorted(value or "" for _, _, value in text(kafka, packed)) == expected
    assert stored_bytes(spark, kafka, packed) < stored_bytes(spark, kafka, plain) / 5


def stored_bytes(spark: SparkSession, kafka: KafkaSettings, topic: str) -> int:
    """Bytes of the topic's partitions in the brokers' logs."""
    admin_api: Any = jvm_of(spark).org.apache.kafka.clients.admin
    admin = admin_api.Admin.create({"bootstrap.servers": kafka.bootstrap_servers})
    try:
        brokers = list(AdminClient(client_config(kafka)).list_topics(timeout=15).brokers)
        logs = admin.describeLogDirs(brokers).allDescriptions().get()
        replicas = [logs[broker][folder].replicaInfos() for broker in logs for folder in logs[broker]]
        return sum(sizes[partition].size() for sizes in replicas for partition in sizes if partition.topic() == topic)
    finally:
        admin.close()


@pytest.mark.parametrize("options", [{"acks": "1"}, {"compression.type": "best"}, {"linger.ms": "-1"}])
def test_other_producer_options_are_refused(run_job: Any, name: str, make_topic: MakeTopic, options: Any) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    with pytest.raises(SpecError, match="producer option"):
        run_job(job_with(source, lambda records: records.select("value"), out, producer=options), name)
