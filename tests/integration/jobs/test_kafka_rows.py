"""Rows as Kafka records, dead letters and digests; tasks make them in Java (`clonos.RecordColumns`)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Message
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from clonos.errors import RecordRejected, SpecError
from clonos.formats.poison import POISON
from clonos.log.claiming import Ownership, claim
from clonos.settings import KafkaSettings
from clonos.testing.harness import read_committed
from clonos_sinks.kafka import KafkaSink
from support.lanes import Row, epoch_of, publish, writes_of

MakeTopic = Callable[..., str]
AT = datetime(2024, 5, 6, 7, 8, 9, 123_999, tzinfo=UTC)
AT_MS = int(AT.replace(microsecond=0).timestamp()) * 1000 + 123
LETTER: dict[str, Any] = {
    "key": b"k",
    "value": b"\xff",
    "headers": [{"key": "h", "value": None}],
    "timestamp": AT,
    "topic": "orders",
    "partition": 2,
    "offset": 7,
    "error": "DecodeError",
    "message": "ä",
}
CAUSES = [
    ("clonos.error.topic", b"orders"),
    ("clonos.error.partition", b"2"),
    ("clonos.error.offset", b"7"),
    ("clonos.error.class", b"DecodeError"),
    ("clonos.error.message", "ä".encode()),
]


def write(own: Ownership, frame: DataFrame, topic: str | None) -> int:
    """Publish the frame as one lane; returns the number of dead letters."""
    sink = KafkaSink("out", topic=topic)
    sink.check_frame(frame)
    (report,) = writes_of(frame.sparkSession, sink, own).write(frame.coalesce(1), epoch_of(own, 3))
    return report.dead_letters


def seen(record: Message) -> tuple[object, ...]:
    """Key, value and headers of a record."""
    return record.key(), record.value(), record.headers()


def test_all_columns_in_any_order(spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    default, elsewhere = make_topic(1), make_topic(4)
    schema = (
        "timestamp timestamp, headers array<struct<key string, value binary>>, partition bigint, topic string, "
        "value binary, key string"
    )
    headers = [("h", b"1"), ("h", None)]
    frame = spark.createDataFrame(
        [(AT, headers, 3, elsewhere, b"v", "k"), (None, None, None, None, b"", None)],
        schema,
    )
    write(claim(kafka, name), frame, default)
    (record,) = read_committed(kafka, elsewhere)
    assert (record.partition(), record.timestamp()[1]) == (3, AT_MS)
    assert seen(record) == (b"k", b"v", headers)
    (record,) = read_committed(kafka, default)
    assert seen(record) == (None, b"", None)


def test_text_is_published_as_utf_8(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    out = make_topic(1)
    write(claim(kafka, name), spark.createDataFrame([("ä",), (None,)], "value string"), out)
    assert [record.value() for record in read_committed(kafka, out)] == ["ä".encode(), None]


def test_a_row_without_a_topic_is_refused(spark: SparkSession, kafka: KafkaSettings, name: str) -> None:
    frame = spark.createDataFrame([("v", None)], "value string, topic string")
    with pytest.raises(SpecError, match="A row names no topic"):
        write(claim(kafka, name), frame, None)


@pytest.mark.parametrize("days", [2, -2], ids=["future", "past"])
def test_a_timestamp_that_the_topic_does_not_accept_is_named(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic, days: int
) -> None:
    out = make_topic(1, message_timestamp_before_max_ms=str(86_400_000))
    now = datetime.now(UTC)
    rows = [Row(out, value=b"good", timestamp=now), Row(out, timestamp=now + timedelta(days=days))]
    setting = "after" if days > 0 else "before"
    with pytest.raises(
        RecordRejected, match=f"{out} has the timestamp .* message.timestamp.{setting}.max.ms"
    ) as refused:
        publish(spark, claim(kafka, name), rows)
    assert not refused.value.retry
    assert read_committed(kafka, out) == []
    appended = make_topic(1, message_timestamp_type="LogAppendTime")  # the broker replaces the timestamps
    publish(spark, claim(kafka, name), [row._replace(topic=appended) for row in rows])
    assert len(read_committed(kafka, appended)) == 2


def test_the_first_millisecond_of_1970_is_a_timestamp(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    out = make_topic(1)
    publish(spark, claim(kafka, name), [Row(out, timestamp=datetime(1970, 1, 1, tzinfo=UTC))])
    assert [record.timestamp()[1] for record in read_committed(kafka, out)] == [0]


@pytest.mark.parametrize("header", ["null", "named_struct('key', cast(null as string), 'value', binary('x'))"])
def test_a_header_without_a_key_is_refused(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic, header: str
) -> None:
    good = "named_struct('key', 'h', 'value', binary('x'))"
    frame = spark.range(1).selectExpr("binary('v') value", f"array({good}, {header}) headers")
    with pytest.raises(RecordRejected, match="Header 1 of a record has no key"):
        write(claim(kafka, name), frame, make_topic(1))


def poisoned(spark: SparkSession, dead: str, letters: Sequence[dict[str, Any] | None]) -> DataFrame:
    """Rows with the values v0, v1, …; those with a letter are poison."""
    schema = T.StructType([T.StructField("value", T.BinaryType()), T.StructField("poison", POISON)])
    rows = [
        (f"v{number}".encode(), letter and T.Row(**(letter | {"dead_letters": dead})))
        for number, letter in enumerate(letters)
    ]
    return spark.createDataFrame(rows, schema)


def test_a_poison_record_is_published_unchanged_with_its_cause(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    out, dead = make_topic(1), make_topic(1)
    letters = [None, LETTER, None, LETTER | {"headers": None, "key": None}]
    assert write(claim(kafka, name), poisoned(spark, dead, letters), out) == 2
    assert [record.value() for record in read_committed(kafka, out)] == [b"v0", b"v2"]
    causes = [*CAUSES, ("clonos.error.job", name.encode()), ("clonos.error.epoch", b"3")]
    records = read_committed(kafka, dead)
    assert list(map(seen, records)) == [(b"k", b"\xff", [("h", None), *causes]), (None, b"\xff", causes)]
    assert {record.timestamp()[1] for record in records} == {AT_MS}


def test_dead_letters_keep_the_order_of_rows(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """A job may send its own rows to the dead-letter topic; they and the poison records keep their order."""
    out = make_topic(1)
    pattern = [LETTER, LETTER, None, None, LETTER, None]
    letters = [letter and letter | {"value": f"p{number}".encode()} for number, letter in enumerate(pattern)]
    write(claim(kafka, name), poisoned(spark, out, letters), out)
    values = [record.value() for record in read_committed(kafka, out)]
    assert values == [b"p0", b"p1", b"v2", b"v3", b"p4", b"v5"]


class Digests:
    """Computes digests: the replays of a committed epoch publish nothing."""

    def __init__(self, spark: SparkSession, own: Ownership) -> None:
        self._spark = spark
        self._own = own
        self._epoch = epoch_of(own, committed=True)

    def __call__(self, *rows: Row) -> bytes:
        report = publish(self._spark, self._own, rows, self._epoch)
        assert report.records == len(rows)
        return report.digest


def test_the_digest_covers_each_field_and_null(spark: SparkSession, kafka: KafkaSettings, name: str) -> None:
    digest = Digests(spark, claim(kafka, name))
    base = Row("t", b"k", b"v", 0, (("h", b"x"),), AT)
    others = [
        base._replace(topic="u"),
        base._replace(key=None),
        base._replace(key=b""),
        base._replace(value=None),
        base._replace(value=b"kv", key=b""),
        base._replace(partition=None),
        base._replace(headers=None),
        base._replace(headers=(("h", None),)),
        base._replace(headers=(("h", b"x"), ("h", b"x"))),
        base._replace(timestamp=None),
    ]
    assert len({digest(row) for row in [base, *others]}) == 11
    assert len(digest(base)) == 16


def test_the_digest_counts_duplicates_and_ignores_the_order(
    spark: SparkSession, kafka: KafkaSettings, name: str
) -> None:
    """With an exclusive or, a pair of equal records would cancel out."""
    digest = Digests(spark, claim(kafka, name))
    rows = [Row("t", value=f"{number}".encode()) for number in range(20)]
    shuffled = random.Random(7).sample(rows, len(rows))
    assert digest(*shuffled) == digest(*rows)
    assert len({digest(*rows, *rows[:1] * times) for times in range(4)}) == 4
