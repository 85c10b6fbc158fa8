"""Several topics from one query: one evaluation, one transaction, together with dead letters; and stable ids."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import uuid5

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import clonos
from clonos import faults
from clonos.audit.output_audit import audit_output
from clonos.causal.stable_id import NAMESPACE
from clonos.errors import EpochFailed, SpecError
from clonos.formats import Json
from clonos.jobs.context import JobContext
from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos.testing.harness import read_committed

MakeTopic = Callable[..., str]
PARTS = ("topic", "partition", "offset")


def feed(kafka: KafkaSettings, topic: str, values: list[bytes], partitions: int = 2) -> None:
    producer = Producer(client_config(kafka))
    for number, value in enumerate(values):
        producer.produce(topic, value, key=f"k{number}", partition=number % partitions)
    assert producer.flush(30) == 0


def numbers(count: int) -> list[bytes]:
    return [json.dumps({"n": number}).encode() for number in range(count)]


def values(kafka: KafkaSettings, topic: str) -> list[Any]:
    return [json.loads(record.value() or b"") for record in read_committed(kafka, topic)]


@clonos.udf("string")
def drawn(topic: str, partition: int, offset: int) -> str:
    return str(clonos.uuid4((topic, partition, offset)))


asked: Counter[int] = Counter()


@clonos.service(name="asked")
def ask(n: int) -> float:
    asked[n] += 1
    return asked[n] + n / 1000


@clonos.udf("double")
def asking(n: int) -> float:
    return ask(n)


@pytest.mark.parametrize("delivery", ["exactly-once", "atomic-epoch"])
def test_all_topics_get_the_same_answers_exactly_once(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, delivery: str
) -> None:
    """An attempt fails after records were sent; the replay publishes the same records."""
    source, every, even = make_topic(2, "in"), make_topic(2, "every"), make_topic(2, "even")
    feed(kafka, source, numbers(40))

    def define(ctx: JobContext) -> None:
        rows = ctx.decode(ctx.source(source, max_per_epoch=10), Json(), schema="n int")
        rows = rows.withColumn("id", drawn(*PARTS)).withColumn("answer", asking(F.col("record.n")))
        value = F.to_json(F.struct("record.n", "id", "answer"))
        outputs = {
            every: clonos.Output(value, key="key"),
            even: clonos.Output(value, key="key", where="record.n % 2 = 0"),
        }
        ctx.sink(clonos.fan_out(rows, outputs), name="out", delivery=delivery)

    failures = iter([None])

    def fail_once() -> None:
        if next(failures, True) is None:
            raise EpochFailed("injected")

    with faults.acting("lane-produced", fail_once, epoch=2):
        run_job(define, name)
    assert len(run_job.events_of("restart")) == 1
    published = {record["n"]: record for record in values(kafka, every)}
    assert sorted(published) == list(range(40))
    assert len(values(kafka, every)) == 40
    assert len({record["id"] for record in published.values()}) == 40
    assert sorted(values(kafka, even), key=lambda record: record["n"]) == [published[n] for n in range(0, 40, 2)]
    audit = audit_output(kafka, name, seconds=1)  # no query names a topic: the log does
    assert (audit.clean, audit.verified.keys(), audit.records) == (True, {"out"}, 60), audit


def test_poison_records_become_dead_letters_once(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    source, clean, large, dead = (make_topic(2, kind) for kind in ("in", "clean", "large", "dead"))
    bad = [b"\xff bad 1", b"\xff bad 2"]
    feed(kafka, source, [bad[0], *numbers(10), bad[1]])

    def define(ctx: JobContext) -> None:
        rows = ctx.decode(
            ctx.source(source), Json(), schema="n int", on_poison="dead-letter", dead_letters=dead
        ).withColumn("id", drawn(*PARTS))
        outputs = {
            clean: clonos.Output(F.to_json("record"), key="key"),  # without a condition: not for poison rows either
            large: clonos.Output(F.to_json("record"), where=F.col("record.n") > 6, headers="headers"),
        }
        ctx.sink(clonos.fan_out(rows, outputs), name="out")

    run_job(define, name)
    assert sorted(record["n"] for record in values(kafka, clean)) == list(range(10))
    assert sorted(record["n"] for record in values(kafka, large)) == [7, 8, 9]
    assert Counter(record.value() for record in read_committed(kafka, dead)) == Counter(bad)
    assert sum(event["dead_letters"] for event in run_job.events_of("epoch")) == 2


def test_a_step_that_may_lose_poison_records_is_refused_beside_fan_out(
    run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    source, out, dead = make_topic(1, "in"), make_topic(1, "out"), make_topic(1, "dead")

    def define(ctx: JobContext) -> None:
        rows = ctx.decode(ctx.source(source), Json(), schema="n int", on_poison="dead-letter", dead_letters=dead)
        exploded = rows.withColumn("part", F.explode(F.array(F.lit(1), F.lit(2))))
        ctx.sink(clonos.fan_out(exploded, {out: clonos.Output("value")}), name="out")

    with pytest.raises(SpecError, match="Generate may lose some"):
        run_job(define, name)


def test_each_record_has_its_own_columns(kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic) -> None:
    source, one, two = make_topic(1, "in"), make_topic(3, "one"), make_topic(1, "two")
    feed(kafka, source, numbers(3), partitions=1)

    def define(ctx: JobContext) -> None:
        headers = F.array(F.struct(F.lit("from").alias("key"), F.col("topic").cast("binary").alias("value")))
        outputs = {
            one: clonos.Output(F.lit(None), key=F.lit("gone"), partition=F.lit(2)),
            two: clonos.Output("value", headers=headers, timestamp=F.timestamp_millis(F.lit(1_700_000_000_000))),
        }
        ctx.sink(clonos.fan_out(ctx.source(source), outputs), name="out")

    run_job(define, name)
    tombstones = read_committed(kafka, one)
    assert [(record.partition(), record.key(), record.value()) for record in tombstones] == [(2, b"gone", None)] * 3
    records = read_committed(kafka, two)
    assert [record.value() for record in records] == numbers(3)
    assert [record.headers() for record in records] == [[("from", source.encode())]] * 3
    assert {record.key() for record in records} == {None}
    assert {record.timestamp()[1] for record in records} == {1_700_000_000_000}


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({}, "no topics"),
        ({"out": clonos.Output("id")}, "The value for the topic 'out' is a bigint"),
        ({"out": clonos.Output("text", key="id")}, "The key for the topic 'out' is a bigint"),
        ({"out": clonos.Output("text", partition="text")}, "The partition for the topic 'out' is a string"),
    ],
)
def test_columns_that_the_sink_refuses_are_refused_before_the_start(
    spark: SparkSession, outputs: dict[str, clonos.Output], message: str
) -> None:
    frame = spark.range(1).withColumn("text", F.lit("a"))
    with pytest.raises(SpecError, match=message):
        clonos.fan_out(frame, outputs)


def test_a_stable_id_depends_on_its_columns_only(spark: SparkSession) -> None:
    """Spark and Python compute the same id: so do two sinks, and a job after a restore."""
    rows = [("orders", 0, 7), ("orders", 0, 8), ('órdenes "x" / \\', 3, 2**40), (None, 1, 1)]
    frame = spark.createDataFrame(rows, "topic string, partition int, offset long")
    ids = [row[0] for row in frame.select(clonos.stable_id(*PARTS)).collect()]
    assert len(set(ids)) == len(rows)
    for row, stable in zip(rows, ids, strict=True):
        name = json.dumps(
            [None if part is None else str(part) for part in row], separators=(",", ":"), ensure_ascii=False
        )
        assert stable == str(uuid5(NAMESPACE, name))
