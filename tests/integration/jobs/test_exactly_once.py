"""`clonos.exactly_once` on a user's session and DataFrame, in one process."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import clonos
from clonos import faults
from clonos.driver.exactly_once import ExactlyOnceQuery
from clonos.driver.repeatable import streaming_scans
from clonos.driver.sink_writers import PythonLanes
from clonos.errors import (
    CausalLogDamaged,
    JobCodeError,
    RestartsExhausted,
    SourceNotRepeatable,
    SpecError,
    Superseded,
    TopicMissing,
)
from clonos.extend.sink import SinkEpoch
from clonos.jobs.spec import RestartPolicy
from clonos.kafka import client_config
from clonos.log.claiming import claim
from clonos.log.topic import log_topic
from clonos.settings import KafkaSettings
from clonos.spark.internals import running_query
from clonos.spark.lane_sink import TaskPlan
from clonos.telemetry.driver_events import error_fields
from clonos.testing.harness import eventually, read_committed
from clonos_sinks.files import FilesSink
from clonos_sinks.kafka import KafkaSink

MakeTopic = Callable[..., str]
NO_RESTARTS = RestartPolicy(attempts=0)


def feed(kafka: KafkaSettings, topic: str, partitions: int, count: int, start: int = 0) -> Counter[str]:
    producer = Producer(client_config(kafka))
    words = [f"w{number}" for number in range(start, start + count)]
    for number, word in enumerate(words):
        producer.produce(topic, word.encode(), partition=number % partitions)
    assert producer.flush(30) == 0
    return Counter(words)


def words(kafka: KafkaSettings, topic: str) -> Counter[str]:
    return Counter((message.value() or b"").decode() for message in read_committed(kafka, topic))


COMMITTED = {"kafka.isolation.level": "read_committed"}


def own_source(
    spark: SparkSession, kafka: KafkaSettings, topic: str, format_: str = "clonos.RepeatableKafka", **options: str
) -> DataFrame:
    """Read a topic with a source of the user's own, without `clonos.source`."""
    defaults = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
    return spark.readStream.format(format_).options(**defaults, **options).load()


@pytest.fixture
def start(kafka: KafkaSettings, name: str, tmp_path: Path) -> Iterator[Callable[..., ExactlyOnceQuery]]:
    """Start queries; the fixture stops all running queries at the end."""
    started: list[ExactlyOnceQuery] = []

    def run(df: DataFrame, sink: Any, **more: Any) -> ExactlyOnceQuery:
        arguments = {"job": name, "checkpoint": tmp_path / "checkpoint", "kafka": kafka, "available_now": True, **more}
        started.append(clonos.exactly_once(df, sink, **arguments).start())
        return started[-1]

    yield run
    for query in started:
        query.stop()


@pytest.fixture
def fail_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Make the driver (not its workers) fail once at a named point."""

    def arm(fault: str) -> None:
        monkeypatch.setenv("CLONOS_FAULT_LOG", str(tmp_path / f"faults-{secrets.token_hex(2)}"))
        monkeypatch.setattr(faults, "_FAULTS", faults.parse(f"{fault}:raise"))

    return arm


def test_a_users_frame_is_published_and_continues_from_its_checkpoint(
    spark: SparkSession, kafka: KafkaSettings, start: Any, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    source, out = make_topic(3, "in"), make_topic(2, "out")
    sent = feed(kafka, source, 3, 30)
    df = clonos.source(spark, source, kafka=kafka).select("key", "value")
    for start_at in (30, 60):
        query = start(df, KafkaSink("out", topic=out))
        assert query.awaitTermination() is None
        assert words(kafka, out) == sent
        assert not query.isActive
        assert query.exception() is None
        assert query.state == "FINISHED"
        assert query.lastProgress["records_out"] == 30
        assert query.name == name
        sent += feed(kafka, source, 3, 30, start=start_at)
    assert (tmp_path / "checkpoint" / "offsets" / "0").exists(), "the checkpoint has Spark's layout"
    admin = AdminClient(client_config(kafka))
    groups = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(f"clonos.{name}.out")])
    offsets = groups[f"clonos.{name}.out"].result(60).topic_partitions
    assert {partition.topic for partition in offsets} == {source}, "lag tools see the topic"


@pytest.mark.parametrize("point", ["offsets-logged", "plan-committed", "epoch-committed", "epoch-done"])
def test_a_failed_epoch_is_replayed_in_the_warm_session(
    spark: SparkSession, kafka: KafkaSettings, start: Any, make_topic: MakeTopic, fail_at: Any, point: str
) -> None:
    source, out = make_topic(3, "in"), make_topic(1, "out")
    sent = feed(kafka, source, 3, 30)
    df = clonos.source(spark, source, kafka=kafka).select("value")
    fail_at(point)
    events: list[dict[str, Any]] = []
    query = start(df, KafkaSink("out", topic=out), restart_policy=RestartPolicy(attempts=2))
    query.awaitTermination()
    events.extend(query.recentProgress)
    assert words(kafka, out) == sent
    assert [event["replay"] for event in events if event["records_out"]][-1] == (point != "offsets-logged")


def test_restarts_have_a_budget(
    spark: SparkSession, kafka: KafkaSettings, start: Any, make_topic: MakeTopic, fail_at: Any
) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    feed(kafka, source, 1, 3)
    fail_at("plan-committed")
    query = start(clonos.source(spark, source, kafka=kafka).select("value"), KafkaSink("out", topic=out),
                  restart_policy=NO_RESTARTS)  # fmt: skip
    with pytest.raises(RestartsExhausted, match="fault injected"):
        query.awaitTermination()
    assert isinstance(query.exception(), RestartsExhausted)
    assert query.state == "FAILED"


def test_a_query_runs_until_stopped(
    spark: SparkSession, kafka: KafkaSettings, start: Any, make_topic: MakeTopic, tmp_path: Path
) -> None:
    source, out = make_topic(2, "in"), make_topic(1, "out")
    df = clonos.source(spark, source, kafka=kafka).select("value")
    events = tmp_path / "events.jsonl"
    query = start(df, KafkaSink("out", topic=out), available_now=False, events=events)
    sent = feed(kafka, source, 2, 10)
    eventually(lambda: words(kafka, out) == sent, "the first records are published", timeout_s=60)
    assert query.isActive
    assert query.stream.isActive
    assert query.awaitTermination(timeout=0.1) is False
    query.stop()
    assert query.awaitTermination(timeout=5) is True
    assert (query.isActive, query.state, query.exception()) == (False, "STOPPED", None)
    event_names = [json.loads(line)["event"] for line in events.read_text().splitlines()]
    assert event_names[0] == "state"
    assert event_names[-1] == "stopped"


def test_a_query_reports_that_another_owner_superseded_it(
    spark: SparkSession, kafka: KafkaSettings, start: Any, name: str, make_topic: MakeTopic
) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    df = clonos.source(spark, source, kafka=kafka).select("value")
    query = start(df, KafkaSink("out", topic=out), available_now=False)
    eventually(lambda: query.state == "RUNNING", "the query runs")
    claim(kafka, name)
    feed(kafka, source, 1, 1)
    with pytest.raises(Superseded):
        query.awaitTermination(timeout=300)
    assert query.state == "SUPERSEDED"
    assert words(kafka, out) == Counter()


def test_a_query_reports_a_users_error(
    spark: SparkSession, kafka: KafkaSettings, start: Any, make_topic: MakeTopic
) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    feed(kafka, source, 1, 1)

    @F.udf("string")
    def broken(value):  # type: ignore[no-untyped-def]  # with types PySpark warns that it cannot infer their kind
        raise ValueError("no way to handle it")

    df = clonos.source(spark, source, kafka=kafka).select(broken("value").alias("value"))
    query = start(df, KafkaSink("out", topic=out))
    with pytest.raises(JobCodeError, match="no way to handle it") as raised:
        query.awaitTermination()
    assert "in broken" in error_fields(raised.value)["stack"], "the stack names the user's function"


@clonos.service
def ask(word: str) -> str:
    return f"{word}-{secrets.token_hex(6)}"


@clonos.udf("string")
def answered(value: str) -> str:
    return ask(value)


def test_causal_services_are_replayed(
    spark: SparkSession, kafka: KafkaSettings, start: Any, make_topic: MakeTopic, fail_at: Any
) -> None:
    source, out = make_topic(2, "in"), make_topic(1, "out")
    sent = feed(kafka, source, 2, 20)
    frame = clonos.source(spark, source, kafka=kafka)
    df = frame.select(answered(F.col("value").cast("string")).alias("value"))
    fail_at("epoch-committed")
    query = start(df, KafkaSink("out", topic=out))
    query.awaitTermination()
    assert Counter(word.rpartition("-")[0] for word in words(kafka, out)) == sent
    replay = next(event for event in query.recentProgress if event["replay"])
    assert (replay["replayed_determinants"], replay["diverged_lanes"]) == (20, 0)


# Sources


def test_a_users_source_with_the_repeatable_format_is_accepted(
    spark: SparkSession, kafka: KafkaSettings, start: Any, make_topic: MakeTopic, fail_at: Any
) -> None:
    source, out = make_topic(3, "in"), make_topic(1, "out")
    sent = feed(kafka, source, 3, 50)
    fail_at("epoch-committed")
    query = start(own_source(spark, kafka, source, **COMMITTED).select("value"), KafkaSink("out", topic=out))
    query.awaitTermination()
    assert words(kafka, out) == sent
    assert any(event["replay"] for event in query.recentProgress)


@pytest.mark.parametrize(
    "kind", ["rate", "files", "socket", "union", "data-loss", "sparks-own", "uncommitted", "isolation"]
)
def test_sources_not_known_to_be_repeatable_are_refused_before_anything_starts(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic, tmp_path: Path, kind: str
) -> None:
    source, out = make_topic(5, "in"), make_topic(1, "out")
    text = F.lit("x").alias("value")
    (tmp_path / "files").mkdir()
    df = {
        "rate": lambda: spark.readStream.format("rate").load().select(text),
        "files": lambda: spark.readStream.schema("value string").json(str(tmp_path / "files")),
        "socket": lambda: spark.readStream.format("socket").options(host="127.0.0.1", port="1").load(),
        "union": lambda: own_source(spark, kafka, source, **COMMITTED).select(text).union(
            spark.readStream.format("rate").load().select(text)
        ),
        "data-loss": lambda: own_source(spark, kafka, source, FailOnDataLoss="False", **COMMITTED).select("value"),
        "sparks-own": lambda: own_source(spark, kafka, source, "kafka", **COMMITTED).select("value"),
        "uncommitted": lambda: own_source(
            spark, kafka, source, **{"Kafka.Isolation.Level": "read_uncommitted"}
        ).select("value"),
        "isolation": lambda: own_source(spark, kafka, source).select("value"),
    }[kind]()  # fmt: skip
    query = clonos.exactly_once(df, KafkaSink("out", topic=out), job=name, checkpoint=tmp_path / "c", kafka=kafka)
    with pytest.raises(SourceNotRepeatable) as refused:
        query.start()
    assert "clonos.source(spark, " in refused.value.hint
    assert log_topic(name) not in AdminClient(client_config(kafka)).list_topics(timeout=10).topics
    assert not (tmp_path / "c").exists()


def test_sources_are_found_under_joins_and_views(spark: SparkSession, kafka: KafkaSettings) -> None:
    frame = own_source(spark, kafka, "a, b", kafkaConsumerPollTimeoutMs="1")
    spark.range(3).createOrReplaceTempView("numbers")
    frame.createOrReplaceTempView("records")
    joined = spark.sql("select r.value from records r join numbers n on length(r.value) = n.id")
    scans = streaming_scans(joined)
    assert [(scan.format, scan.topics()) for scan in scans] == [("clonos.RepeatableKafka", ["a", "b"])]
    assert scans[0].options["kafkaconsumerpolltimeoutms"] == "1"


# Other refusals before the query starts


@pytest.mark.parametrize(
    ("sink", "error", "says"),
    [
        (KafkaSink("out", topic="nowhere"), TopicMissing, "nowhere"),
        (KafkaSink("Not A Name", topic="x"), SpecError, "Not A Name"),
        (KafkaSink("out"), SpecError, "no topic"),
        (KafkaSink("out", topic="x", delivery="at-most-once"), SpecError, "at-most-once"),  # type: ignore[arg-type]
        (KafkaSink("out", topic="x", output_mode="overwrite"), SpecError, "overwrite"),  # type: ignore[arg-type]
    ],
    ids=["topic", "name", "no-topic", "delivery", "mode"],
)
def test_the_sink_refuses(
    spark: SparkSession, kafka: KafkaSettings, start: Any, make_topic: MakeTopic, sink: KafkaSink, error: Any, says: str
) -> None:
    df = clonos.source(spark, make_topic(1, "in"), kafka=kafka).select("value")
    with pytest.raises(error, match=says):
        start(df, sink)


def test_a_batch_frame_is_refused(spark: SparkSession, start: Any) -> None:
    with pytest.raises(SpecError, match="without a streaming source"):
        start(spark.range(1).selectExpr("string(id) as value"), KafkaSink("out", topic="x"))


def test_a_checkpoint_of_plain_spark_is_refused_without_a_new_lineage(
    spark: SparkSession, kafka: KafkaSettings, start: Any, make_topic: MakeTopic, tmp_path: Path
) -> None:
    source, out = make_topic(2, "in"), make_topic(1, "out")
    feed(kafka, source, 2, 10)
    df = clonos.source(spark, source, kafka=kafka).select("value")
    checkpoint = str(tmp_path / "checkpoint")
    plain = df.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True)
    plain.start().awaitTermination(300)
    query = start(df, KafkaSink("out", topic=out))
    with pytest.raises(CausalLogDamaged, match="topic of the causal log, does not exist"):
        query.awaitTermination()
    sent = feed(kafka, source, 2, 10, start=10)
    start(df, KafkaSink("out", topic=out), new_lineage=True).awaitTermination()
    assert words(kafka, out) == sent, "the query continued where plain Spark had stopped"


# The session


def test_a_users_settings_are_restored(
    spark: SparkSession,
    kafka: KafkaSettings,
    start: Any,
    make_topic: MakeTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = make_topic(1, "in")
    feed(kafka, source, 1, 3)
    seen: list[str] = []
    begin = PythonLanes.begin

    def look(lanes: PythonLanes, epoch: SinkEpoch, partitions: int) -> TaskPlan:
        session = running_query(spark).sparkSessionForStream()
        seen.append(session.conf().get("spark.sql.adaptive.enabled"))
        return begin(lanes, epoch, partitions)

    monkeypatch.setattr(PythonLanes, "begin", look)
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    try:
        sink = FilesSink("out", path=tmp_path / "out")
        start(clonos.source(spark, source, kafka=kafka).selectExpr("string(value)"), sink).awaitTermination()
        assert seen == ["false"], "adaptive execution is off during an epoch"
        assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", before)
    assert len(list((tmp_path / "out").glob("*.jsonl"))) == 1
