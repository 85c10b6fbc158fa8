"""Target topics and partitions, and records that Kafka never accepts, on a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from pyspark.sql import SparkSession

from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import ensure_jars
from clonos.errors import ClonosError, RecordRejected, TopicMissing
from clonos.kafka import client_config
from clonos.log.claiming import claim
from clonos.log.topic import log_topic
from clonos.settings import KafkaSettings, Settings
from clonos.testing.harness import eventually, has_open_transaction, read_committed
from clonos_sinks.kafka import KafkaSink
from support.lanes import Row, publish, publish_with, writes_of

MakeTopic = Callable[..., str]
AT_ONCE_S = 50.0  # a producer would wait for a topic for 60 s
SMALL = 20_000
WAYS = ("exactly-once", "at-least-once")


def row(topic: str, value: bytes | None = b"v", key: bytes | None = b"k", partition: int | None = None) -> Row:
    return Row(topic, key, value, partition)


REFUSED: list[tuple[str, Callable[[str, str], list[Row]], type[ClonosError], str]] = [
    ("unknown-topic", lambda out, small: [row(out), row("nowhere")], TopicMissing, "nowhere"),
    ("unknown-topic-first", lambda out, small: [row("nowhere")], TopicMissing, "nowhere"),
    (
        "unknown-partition",
        lambda out, small: [row(out), row(out, partition=2)],
        RecordRejected,
        "partition 2 of .* has 2",
    ),
    ("negative-partition", lambda out, small: [row(out, partition=-1)], RecordRejected, "partition -1"),
    (
        "request-too-large",
        lambda out, small: [row(out), row(out, b"x" * 1_100_000)],
        RecordRejected,
        "1100075 bytes.*1048588",
    ),
    (
        "request-too-large-for-another-topic",
        lambda out, small: [row(out), row(small, b"x" * SMALL)],
        RecordRejected,
        "20000",
    ),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("rows", "error", "says"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_refused_at_once_with_nothing_published(
    spark: SparkSession,
    kafka: KafkaSettings,
    name: str,
    make_topic: MakeTopic,
    rows: Callable[[str, str], list[Row]],
    error: type[ClonosError],
    says: str,
    way: str,
) -> None:
    out, small = make_topic(2), make_topic(1, max_message_bytes=str(SMALL))
    own = claim(kafka, name)
    began = time.monotonic()
    with pytest.raises(error, match=says) as refused:
        publish(spark, own, rows(out, small), topic=out, delivery=way)
    assert time.monotonic() - began < AT_ONCE_S
    assert not refused.value.retry
    assert refused.value.hint
    # No further attempt follows that would abort an open transaction.
    eventually(lambda: not has_open_transaction(kafka, out, small), "readers wait for nothing")
    assert read_committed(kafka, out) == read_committed(kafka, small) == []
    assert "nowhere" not in AdminClient(client_config(kafka)).list_topics(timeout=10).topics


def test_the_message_names_topic_size_limit_and_setting(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    out = make_topic(1, max_message_bytes=str(SMALL))
    big = row(out, b"x" * SMALL)
    with pytest.raises(RecordRejected) as refused:
        publish(spark, claim(kafka, name), [big], topic=out)
    assert refused.value.what == f"A record for {out} takes {big.batch_bytes} bytes, " + (
        f"the topic's max.message.bytes allows {SMALL}."
    )
    assert refused.value.hint == f"raise the topic's max.message.bytes to at least {big.batch_bytes}, or " + (
        "publish smaller records."
    )


def exactly(topic: str, size: int, headers: int) -> Row:
    """A record that takes `size` bytes."""
    padded = Row(topic, b"key", b"", None, tuple((f"h{i}", b"x" if i % 2 else None) for i in range(headers)))
    while (missing := size - padded.batch_bytes) > 0:
        padded = padded._replace(value=(padded.value or b"") + b"x" * max(1, missing - 8))
    return padded


@pytest.mark.parametrize("headers", [0, 3, 70])
def test_the_limit_is_known_to_the_byte(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic, headers: int
) -> None:
    """A record of exactly the limit is published; the broker refuses one byte more."""
    out = make_topic(1, max_message_bytes=str(SMALL))
    own = claim(kafka, name)
    fits = exactly(out, SMALL, headers)
    assert fits.batch_bytes == SMALL
    publish(spark, own, [fits, fits], topic=out)
    assert [len(message.value() or b"") for message in read_committed(kafka, out)] == [len(fits.value or b"")] * 2
    over = fits._replace(value=(fits.value or b"") + b"x")
    with pytest.raises(RecordRejected, match="takes 20001 bytes"):
        publish(spark, own, [over], 1, topic=out)
    assert len(read_committed(kafka, out)) == 2


@pytest.mark.parametrize("default", [True, False], ids=["default-topic", "topic-column"])
@pytest.mark.parametrize("way", WAYS)
def test_batches_are_no_larger_than_a_topic_takes(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic, default: bool, way: str
) -> None:
    """Many records that fit, for a topic that takes less than a producer's batches."""
    out, other = make_topic(1, max_message_bytes="2000"), make_topic(1)
    own = claim(kafka, name)
    many = [row(out, f"{number}".encode().ljust(300, b".")) for number in range(200)]
    publish(spark, own, many, topic=out if default else other, delivery=way)
    assert [message.value() for message in read_committed(kafka, out)] == [row.value for row in many]


def test_a_topic_may_take_more_than_others(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    out, large = make_topic(1), make_topic(1, max_message_bytes=str(12 * 1024 * 1024))
    own = claim(kafka, name)
    big = row(large, b"x" * (11 * 1024 * 1024))
    publish(spark, own, [row(out), big], topic=out)
    publish(spark, own, [big], 1, topic=large)
    assert [len(message.value() or b"") for message in read_committed(kafka, large)] == [11 * 1024 * 1024] * 2


def test_raised_limit_takes_effect(spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    """The limit also takes effect in a sink that has read the old limit."""
    out, small = make_topic(1), make_topic(1, max_message_bytes=str(SMALL))
    own = claim(kafka, name)
    big = row(small, b"x" * SMALL)
    for topic in (small, out):
        with pytest.raises(RecordRejected):
            publish(spark, own, [big], topic=topic)
    stale = KafkaSink("out", topic=small)
    stale.check(kafka)
    raise_limit(kafka, small, 50_000)
    publish_with(spark, writes_of(spark, stale, own), own, [big])
    publish(spark, own, [big], 1, topic=out)
    assert len(read_committed(kafka, small)) == 2


def raise_limit(kafka: KafkaSettings, topic: str, limit: int) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry

    admin = AdminClient(client_config(kafka))
    entry = ConfigEntry("max.message.bytes", str(limit), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(60)

    def is_raised() -> bool:
        sink = KafkaSink("out", topic=topic)
        sink.check(kafka)
        return sink._limits.record == limit

    eventually(is_raised, "the limit is raised")


def test_several_topics_in_one_transaction(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    topics = [make_topic(2) for _ in range(3)]
    own = claim(kafka, name)
    good = [row(topic, f"{number}".encode()) for number in range(5) for topic in topics]
    with pytest.raises(RecordRejected):
        publish(spark, own, [*good, row(topics[0], partition=9)])
    assert [read_committed(kafka, topic) for topic in topics] == [[], [], []]
    publish(spark, claim(kafka, name), good)
    assert all(len(read_committed(kafka, topic)) == 5 for topic in topics)


def test_null_keys_and_tombstones(spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    out = make_topic(1)
    expected = [(None, b"no key"), (b"k", None), (None, None), (b"", b"")]
    publish(spark, claim(kafka, name), [row(out, value, key) for key, value in expected])
    assert [(message.key(), message.value()) for message in read_committed(kafka, out)] == expected


# Hashes from the tests of Kafka's own Java client (UtilsTest); its producer places a key at hash % partitions.
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("way", WAYS)
def test_keys_have_the_partitions_of_java_clients(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic, way: str
) -> None:
    out = make_topic(7)
    batch = [row(out, key=key) for key in MURMUR2] + [row(out, key=b"pinned", partition=3)]
    publish(spark, claim(kafka, name), batch, delivery=way)
    placed = {message.key(): message.partition() for message in read_committed(kafka, out)}
    assert placed == {key: (value & 0x7FFFFFFF) % 7 for key, value in MURMUR2.items()} | {b"pinned": 3}


@pytest.fixture(scope="module")
def careless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaSettings]:
    """A broker that creates each requested topic, which is Kafka's default."""
    properties = {"auto.create.topics.enable": "true"}
    folder = tmp_path_factory.mktemp("careless")
    with EmbeddedKafka(folder, jars=ensure_jars(Settings()), properties=properties) as cluster:
        yield cluster.kafka


def test_missing_topic_is_not_created(spark: SparkSession, careless: KafkaSettings, name: str) -> None:
    with pytest.raises(TopicMissing, match="'misspelt'"):
        publish(spark, claim(careless, name), [row("misspelt")])
    with pytest.raises(TopicMissing, match="'misspelt'"):
        publish(spark, claim(careless, name), [row("misspelt")], delivery="at-least-once")
    with pytest.raises(TopicMissing, match="'misspelt'"):
        KafkaSink("out", topic="misspelt").check(careless)
    topics = AdminClient(client_config(careless)).list_topics(timeout=10).topics
    assert [topic for topic in topics if not topic.startswith("__")] == [log_topic(name)]


def test_broker_with_auto_creation_creates_topics(careless: KafkaSettings) -> None:
    """Otherwise the test above would prove nothing."""
    from confluent_kafka import Producer

    Producer({"bootstrap.servers": careless.bootstrap_servers}).list_topics("asked-for", timeout=10)
    admin = AdminClient(client_config(careless))
    eventually(lambda: "asked-for" in admin.list_topics(timeout=10).topics, "the broker created the requested topic")
