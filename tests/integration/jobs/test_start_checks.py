"""Start checks refuse a bad job before it claims or publishes anything; starting offsets and rate limits work."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from pyspark.sql import functions as F

from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import ensure_jars
from clonos.errors import BrokerLimit, ClonosError, JobCodeError, SourceNotRepeatable, SpecError, TopicMissing
from clonos.jobs.context import JobContext
from clonos.kafka import client_config
from clonos.log.topic import log_topic
from clonos.settings import KafkaSettings, Settings
from clonos.testing.harness import eventually, read_committed
from clonos_sinks.kafka.limits import broker_settings

MakeTopic = Callable[..., str]


def copy(
    source: str | None, out: str, *, sink: dict[str, Any] | None = None, **options: Any
) -> Callable[[JobContext], None]:
    def job(ctx: JobContext) -> None:
        records = ctx.source(source, **options)
        value = F.to_json(F.struct(F.col("value").cast("string").alias("word"))).alias("value")
        ctx.sink(records.select(value), topic=out, name="out", **(sink or {}))

    return job


def feed(kafka: KafkaSettings, topic: str, count: int) -> list[str]:
    producer = Producer(client_config(kafka))
    words = [f"w{number}" for number in range(count)]
    for word in words:
        producer.produce(topic, word.encode(), partition=0)
    assert producer.flush(30) == 0
    return words


def words(kafka: KafkaSettings, topic: str) -> list[str]:
    return [json.loads(message.value() or b"{}")["word"] for message in read_committed(kafka, topic)]


@pytest.mark.turn
def test_a_cluster_that_does_not_show_its_brokers_settings_is_accepted(
    run_on: Callable[[KafkaSettings], Any], name: str, tmp_path: Path
) -> None:
    """Managed clusters refuse to describe brokers."""
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with EmbeddedKafka(tmp_path / "kafka", jars=ensure_jars(Settings()), properties=properties) as cluster:
        kafka = cluster.kafka
        admin = AdminClient(client_config(kafka))
        for created in admin.create_topics([NewTopic("in", 1), NewTopic("out", 1)]).values():
            created.result(60)
        where = (ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL, "User:*", "*")
        rules = [
            AclBinding(*where, AclOperation.ALL, AclPermissionType.ALLOW),
            AclBinding(*where, AclOperation.DESCRIBE_CONFIGS, AclPermissionType.DENY),
        ]
        for added in admin.create_acls(rules).values():
            added.result(60)
        broker = next(iter(admin.list_topics(timeout=10).brokers))
        eventually(lambda: broker_settings(admin, broker) == {}, "the cluster refuses", timeout_s=30)
        sent = feed(kafka, "in", 5)
        run_on(kafka)(copy("in", "out"), name)
        assert words(kafka, "out") == sent


def nothing_claimed(kafka: KafkaSettings, name: str) -> bool:
    return log_topic(name) not in AdminClient(client_config(kafka)).list_topics(timeout=10).topics


REFUSED: list[tuple[str, dict[str, Any], type[ClonosError], str]] = [
    ("unknown-source", {"source": "nowhere"}, TopicMissing, "nowhere"),
    ("unknown-sink", {"out": "nowhere"}, TopicMissing, "nowhere"),
    ("reserved-option", {"options": {"startingOffsets": "latest"}}, SpecError, "startingOffsets"),
    ("transaction-timeout", {"sink": {"transaction_timeout_ms": 10**9}}, BrokerLimit, "1000000000"),
    ("bad-mode", {"sink": {"mode": "overwrite"}}, SpecError, "overwrite"),
    ("bad-delivery", {"sink": {"delivery": "at-most-once"}}, SpecError, "at-most-once"),
    ("unknown-partition", {"source": None, "assign": [0, 7]}, TopicMissing, r"in-\w+\[7\]"),
    ("unknown-assigned", {"source": None, "assign": {"nowhere": [0]}}, TopicMissing, "nowhere"),
    ("bad-pattern", {"source": None, "pattern": "in-("}, SpecError, "Unclosed group"),
    ("pattern-that-ends-ours", {"source": None, "pattern": "in)|(clonos.*"}, SpecError, "Unmatched"),
    ("pattern-that-swallows-ours", {"source": None, "pattern": r"\Qin"}, SpecError, "Unclosed group"),
    ("unknown-argument", {"sink": {"colour": "red"}}, SpecError, "colour"),
]


@pytest.mark.parametrize(
    ("changes", "error", "names"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_refused_before_claiming(
    kafka: KafkaSettings,
    run_job: Any,
    name: str,
    make_topic: MakeTopic,
    changes: dict[str, Any],
    error: type[ClonosError],
    names: str,
) -> None:
    source = make_topic(1, "in")
    arguments = {"source": source, "out": make_topic(1, "out"), **changes}
    if isinstance(arguments.get("assign"), list):
        arguments["assign"] = {source: arguments["assign"]}
    with pytest.raises(error, match=names):
        run_job(copy(**arguments), name)
    assert nothing_claimed(kafka, name)


def test_query_that_spark_refuses(kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")

    def job(ctx: JobContext) -> None:
        counts = ctx.source(source).groupBy("key").count()
        ctx.sink(counts.select("key", F.col("count").cast("string").alias("value")), topic=out, mode="append")

    with pytest.raises(JobCodeError, match="Spark refuses the query"):
        run_job(job, name)
    assert run_job.events_of("restart") == []


def test_log_topic_that_kafka_would_truncate(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    admin = AdminClient(client_config(kafka))
    made = NewTopic(log_topic(name), 1, config={"retention.ms": "1000"})
    admin.create_topics([made])[log_topic(name)].result(60)
    with pytest.raises(BrokerLimit, match="would lose records"):
        run_job(copy(source, out), name)


def test_starting_offsets_and_rate_limit(kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    sent = feed(kafka, source, 10)
    run_job(copy(source, out, starting={source: {0: 4}}, max_per_epoch=2), name)
    assert words(kafka, out) == sent[4:]
    assert [event["records_out"] for event in run_job.events_of("epoch")] == [2, 2, 2]


def test_several_sinks_are_one_query_each(kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic) -> None:
    source, left, right = make_topic(2, "in"), make_topic(1, "left"), make_topic(1, "right")
    sent = Counter(feed(kafka, source, 10))

    def job(ctx: JobContext) -> None:
        records = ctx.source(source)
        value = F.to_json(F.struct(F.col("value").cast("string").alias("word"))).alias("value")
        ctx.sink(records.select(value), topic=left, name="left")
        ctx.sink(records.select(value, F.lit(right).alias("topic")), name="right")

    run_job(job, name)
    assert Counter(words(kafka, left)) == Counter(words(kafka, right)) == sent
    assert len(run_job.events_of("claimed")) == 1, "one claim for the whole job"


@pytest.mark.parametrize(
    ("lag_ms", "accepted", "refused"),
    [("0", False, True), ("0", True, False), (str(24 * 60 * 60 * 1000), False, False)],
    ids=["refused", "accepted by the job", "compacted after a day"],
)
def test_a_compacted_source_topic(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, lag_ms: str, accepted: bool, refused: bool
) -> None:
    source, out = f"{name}-compacted", make_topic(1, "out")
    config = {"cleanup.policy": "compact", "min.compaction.lag.ms": lag_ms}
    admin = AdminClient(client_config(kafka))
    admin.create_topics([NewTopic(source, 1, config=config)])[source].result(60)
    producer = Producer(client_config(kafka))
    producer.produce(source, b"a", b"key")
    assert producer.flush(30) == 0

    def job(ctx: JobContext) -> None:
        ctx.sink(ctx.source(source, compacted=accepted).select(F.col("value").cast("string")), topic=out, name="out")

    if refused:
        with pytest.raises(SourceNotRepeatable, match=f"{source} is compacted"):
            run_job(job, name)
    else:
        run_job(job, name)
    assert len(read_committed(kafka, out)) == (0 if refused else 1)
