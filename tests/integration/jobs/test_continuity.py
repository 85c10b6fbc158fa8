"""A job that lost a sink or a topic of its past, and the user's decisions about epochs in doubt."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import clonos
from clonos.driver.options import RunOptions
from clonos.driver.topic_ids import topic_ids
from clonos.errors import (
    CausalLogDamaged,
    CheckpointMismatch,
    ReplayDivergence,
    RestartsExhausted,
    SinkRemoved,
    SourceOffsetsExpired,
    SpecError,
    TopicMissing,
)
from clonos.jobs.context import JobContext
from clonos.jobs.definition import JobFunction
from clonos.kafka import client_config
from clonos.log.claiming import claim
from clonos.log.control import known_control
from clonos.log.topic import log_topic
from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, read_committed
from support.driver_thread import DriverThread
from support.lost_worker import lose_worker_once

MakeTopic = Callable[..., str]
Feed = Callable[..., Counter[str]]


@pytest.fixture
def feed(kafka: KafkaSettings) -> Feed:
    def send(topic: str, partitions: int, count: int, start: int = 0) -> Counter[str]:
        producer = Producer(client_config(kafka))
        texts = [f"r{number}" for number in range(start, start + count)]
        for number, text in enumerate(texts):
            producer.produce(topic, text, partition=number % partitions)
        assert producer.flush(30) == 0
        return Counter(texts)

    return send


@pytest.fixture
def create_again(kafka: KafkaSettings, make_topic: MakeTopic) -> Callable[[str, int], None]:
    def again(topic: str, partitions: int) -> None:
        admin = AdminClient(client_config(kafka))
        admin.delete_topics([topic])[topic].result(60)
        eventually(lambda: topic not in admin.list_topics(timeout=60).topics, f"{topic} is deleted")
        make_topic(partitions, exactly=topic)

    return again


def copied(kafka: KafkaSettings, topic: str) -> Counter[str]:
    return Counter((record.value() or b"").decode() for record in read_committed(kafka, topic))


def copy(source: str, **sinks: str) -> Callable[[JobContext], None]:
    """A job that copies a topic to each sink's topic."""

    def job(ctx: JobContext) -> None:
        rows = ctx.source(source).select(F.col("value").cast("string"))
        for name, topic in sinks.items():
            ctx.sink(rows, topic=topic, name=name)

    return job


def test_files_of_a_deleted_log_do_not_count(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, feed: Feed, tmp_path: Path
) -> None:
    """The new log begins with lineage 1 and epoch 0 again, and so would the names of files."""
    source, folder = make_topic(1, "in"), tmp_path / "files"

    def job(ctx: JobContext) -> None:
        rows = ctx.source(source).select(F.col("value").cast("string"))
        ctx.sink(rows, connector="files", path=folder, name="out")

    def lines() -> int:
        return sum(len(file.read_text().splitlines()) for file in folder.glob("[!.]*.jsonl"))

    feed(source, 1, 4)
    run_job(job, name)
    assert lines() == 4
    log = log_topic(name)
    admin = AdminClient(client_config(kafka))
    admin.delete_topics([log])[log].result(60)
    eventually(lambda: log not in admin.list_topics(timeout=60).topics, "the log is deleted")
    feed(source, 1, 2, start=4)
    run_job(job, name, new_lineage=True, checkpoint="another")
    assert lines() == 4 + 6


# Topics that are deleted and created again


def test_a_source_topic_that_was_created_again_is_refused(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, feed: Feed, create_again: Any
) -> None:
    source, out = make_topic(2, "in"), make_topic(1, "out")
    sent = feed(source, 2, 10)
    run_job(copy(source, out=out), name)
    create_again(source, 2)
    feed(source, 2, 40, start=100)  # more records than the old topic had: all of the checkpoint's offsets exist
    with pytest.raises(SourceOffsetsExpired, match=rf"{source}.* deleted and created again"):
        run_job(copy(source, out=out), name)
    assert copied(kafka, out) == sent


@pytest.fixture
def running(
    spark: SparkSession, kafka: KafkaSettings, name: str, tmp_path: Path
) -> Iterator[Callable[[JobFunction], DriverThread]]:
    """Start a job that runs until it fails, on the checkpoint of `run_job`."""
    started: list[DriverThread] = []

    def start(function: JobFunction) -> DriverThread:
        options = RunOptions(checkpoint=str(tmp_path / "checkpoint"))
        started.append(DriverThread(spark, kafka, function, name, options))
        return started[-1]

    yield start
    for thread in started:
        thread.driver.stop()
        thread.join()


@pytest.mark.parametrize("lanes", ["driver", pytest.param("partition", marks=pytest.mark.turn)])
def test_a_source_topic_that_is_created_again_while_the_job_runs(
    kafka: KafkaSettings,
    run_job: Any,
    name: str,
    make_topic: MakeTopic,
    feed: Feed,
    swap: Any,
    running: Callable[[JobFunction], DriverThread],
    lanes: str,
    request: pytest.FixtureRequest,
) -> None:
    """No record of the new topic is published under an offset of the old one, and the way on publishes each once."""
    if lanes == "partition":
        request.getfixturevalue("partition_lanes")
    source, other, out = make_topic(2, "in"), make_topic(1, "other"), make_topic(1, "out")

    def job(ctx: JobContext) -> None:
        numbers = ctx.source([source, other]).groupBy(F.col("value").cast("string").alias("key")).count()
        ctx.sink(numbers.select(F.concat_ws("=", "key", "count").alias("value")), topic=out, mode="update")

    sent = feed(source, 2, 100) + feed(other, 1, 10, start=900)
    thread = running(job)
    thread.await_(lambda: copied(kafka, out).total() == 110, "the old records are published")
    swap(source, 2)
    feed(source, 2, 300, start=50)  # more than the old topic had: all of the checkpoint's offsets exist
    thread.join()
    assert isinstance(thread.failure, SourceOffsetsExpired), thread.failure
    assert re.search(rf"{source}.* deleted and created again", thread.failure.what)
    published = copied(kafka, out)
    assert published == counted(sent), "nothing of the new topic is published"
    epochs = [event["epoch"] for event in thread.events if event["event"] == "epoch"]
    named = re.search(r"The first epoch concerned is epoch (\d+) of output", thread.failure.what)
    assert named is not None, thread.failure.what
    assert int(named[1]) == epochs[-1] + 1
    with pytest.raises(SourceOffsetsExpired, match="deleted and created again"):
        run_job(job, name)
    assert "--new-lineage" in thread.failure.hint
    feed(other, 1, 5, start=910)
    run_job(job, name, new_lineage=True)
    # The state knows the records of the old topic, and the other topic is read from where it was.
    assert copied(kafka, out) - published == Counter(
        [f"r{number}={2 if number < 100 else 1}" for number in range(50, 350)] + [f"r{n}=1" for n in range(910, 915)]
    )


def counted(sent: Counter[str]) -> Counter[str]:
    return Counter(f"{text}={count}" for text, count in sent.items())


def test_a_sink_topic_that_is_created_again_while_the_job_runs_is_reported(
    kafka: KafkaSettings,
    name: str,
    make_topic: MakeTopic,
    feed: Feed,
    swap: Any,
    running: Callable[[JobFunction], DriverThread],
) -> None:
    """The transaction that met the new topic is aborted, and the next one is committed under the new id."""
    source, out = make_topic(1, "in"), make_topic(1, "out")
    feed(source, 1, 10)
    thread = running(copy(source, out=out))
    thread.await_(lambda: copied(kafka, out).total() == 10, "the first records are published")
    swap(out, 1)
    sent = feed(source, 1, 5, start=10)
    thread.await_(lambda: copied(kafka, out) == sent, "the new topic has the new records")
    again = [event for event in thread.events if event["event"] == "topic-created-again"]
    assert [event["topic"] for event in again] == [out]
    sent += feed(source, 1, 5, start=15)
    thread.await_(lambda: copied(kafka, out) == sent, "the job continues")
    known = known_control(kafka, name)
    assert known is not None
    assert known.topic_ids[out] == topic_ids(kafka, [out])[out]


def test_a_log_topic_that_is_deleted_while_the_job_runs(
    kafka: KafkaSettings,
    run_job: Any,
    name: str,
    make_topic: MakeTopic,
    feed: Feed,
    running: Callable[[JobFunction], DriverThread],
) -> None:
    """The job stops at once, although it is idle, and no driver creates the topic again."""
    source, out = make_topic(1, "in"), make_topic(1, "out")
    sent = feed(source, 1, 10)
    thread = running(copy(source, out=out))
    thread.await_(lambda: copied(kafka, out) == sent, "the records are published")
    admin, log = AdminClient(client_config(kafka)), log_topic(name)
    admin.delete_topics([log])[log].result(60)
    thread.join()
    assert isinstance(thread.failure, CausalLogDamaged), thread.failure
    assert log in thread.failure.what
    assert [event for event in thread.events if event["event"] in {"superseded", "restart", "waiting"}] == []
    sent += feed(source, 1, 5, start=10)
    with pytest.raises(CausalLogDamaged, match="the topic of the causal log"):
        run_job(copy(source, out=out), name)
    assert log not in admin.list_topics(timeout=60).topics
    run_job(copy(source, out=out), name, new_lineage=True)
    assert copied(kafka, out) == sent


@pytest.mark.turn
@pytest.mark.usefixtures("partition_lanes")
def test_a_sink_topic_that_was_created_again_in_mid_epoch_is_refused_until_decided(
    kafka: KafkaSettings,
    run_job: Any,
    name: str,
    make_topic: MakeTopic,
    feed: Feed,
    create_again: Any,
    fail_at: Callable[[str], None],
) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    sent = feed(source, 1, 10)
    fail_at("epoch-committed")
    with pytest.raises(RestartsExhausted):
        run_job(copy(source, out=out), name, restart_policy={"attempts": 0})
    create_again(out, 1)
    with pytest.raises(CheckpointMismatch, match="the lanes that were published are gone") as refused:
        run_job(copy(source, out=out), name)
    assert "--resolve out:0=republish" in refused.value.hint
    run_job(copy(source, out=out), name, resolve=["out:0=republish"])
    assert copied(kafka, out) == sent
    sent += feed(source, 1, 5, start=10)
    run_job(copy(source, out=out), name)
    assert copied(kafka, out) == sent


def test_a_sink_topic_that_was_created_again_between_epochs_is_reported(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, feed: Feed, create_again: Any
) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    feed(source, 1, 10)
    run_job(copy(source, out=out), name)
    create_again(out, 1)
    sent = feed(source, 1, 5, start=10)
    run_job(copy(source, out=out), name)
    assert copied(kafka, out) == sent
    assert [event["topic"] for event in run_job.events_of("topic-created-again")] == [out]
    run_job(copy(source, out=out), name)
    assert len(run_job.events_of("topic-created-again")) == 1, "the log has the new id"


# Sinks that are renamed or removed


def test_a_renamed_sink_is_refused_until_declared(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, feed: Feed
) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    sent = feed(source, 1, 5)
    run_job(copy(source, output=out), name)
    with pytest.raises(SinkRemoved, match=r"\['output'\].*\['totals'\], which would publish all") as refused:
        run_job(copy(source, totals=out), name)
    assert refused.value.exit_code == 60
    assert copied(kafka, out) == sent, "nothing is published twice"
    run_job(copy(source, totals=out), name, dropped_sinks=["output"])
    assert copied(kafka, out) == sent + sent, "as declared"
    assert [event["query"] for event in run_job.events_of("sink-added")] == ["totals"]
    run_job(copy(source, totals=out), name)  # the log remembers the declaration
    assert copied(kafka, out) == sent + sent


def test_a_sink_that_is_removed_in_mid_epoch_is_refused_until_decided(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, feed: Feed, fail_at: Callable[[str], None]
) -> None:
    source, first, second = make_topic(1, "in"), make_topic(1, "a"), make_topic(1, "b")
    sent = feed(source, 1, 6)
    fail_at("plan-committed,query=b")
    with pytest.raises(RestartsExhausted):
        run_job(copy(source, a=first, b=second), name, restart_policy={"attempts": 0})
    with pytest.raises(SinkRemoved, match="b"):
        run_job(copy(source, a=first), name)
    with pytest.raises(SinkRemoved, match="has epoch 0 in doubt") as refused:
        run_job(copy(source, a=first), name, dropped_sinks=["b"])
    assert "--resolve b:0=keep" in refused.value.hint
    run_job(copy(source, a=first), name, dropped_sinks=["b"], resolve=["b:0=keep"])
    run_job(copy(source, a=first), name)
    assert (copied(kafka, first), copied(kafka, second)) == (sent, Counter())


# Decisions about an epoch in doubt


@clonos.udf("string")
def different(partition: int, word: str, flag: str, out: str) -> str:
    """Another answer at each call; the first worker is lost once a lane is published."""
    lose_worker_once(flag, out, partition)
    return f"{word}/{random.getrandbits(64):016x}"  # clonos: allow


@dataclass
class Diverged:
    """A job that stopped with a divergence.

    Attributes:
        job: The job.
        source: Its source topic, of four partitions.
        out: Its sink topic.
        sent: The records sent.
        published: Number of records published.
    """

    job: Callable[[JobContext], None]
    source: str
    out: str
    sent: Counter[str]
    published: int


@pytest.fixture
def diverged(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, feed: Feed, tmp_path: Path
) -> Diverged:
    source, out = make_topic(4, "in"), make_topic(1, "out")
    sent = feed(source, 4, 20)

    def job(ctx: JobContext) -> None:
        values = different("partition", F.col("value").cast("string"), F.lit(str(tmp_path / "lost")), F.lit(out))
        ctx.sink(ctx.source(source).select(values.alias("value")), topic=out, name="out")

    with pytest.raises(ReplayDivergence) as stopped:
        run_job(job, name)
    assert "--resolve" in stopped.value.hint
    published = sum(sources(kafka, out).values())
    assert 0 < published < 20
    with pytest.raises(ReplayDivergence):
        run_job(job, name, code="2", accept_new_code=True)
    return Diverged(job, source, out, sent, published)


def sources(kafka: KafkaSettings, topic: str) -> Counter[str]:
    """The input records of a topic's records."""
    return Counter(text.partition("/")[0] for text in copied(kafka, topic).elements())


@pytest.mark.turn
@pytest.mark.usefixtures("partition_lanes")
def test_the_published_lanes_are_kept(
    kafka: KafkaSettings, run_job: Any, name: str, feed: Feed, diverged: Diverged
) -> None:
    sent = diverged.sent
    before = copied(kafka, diverged.out)
    run_job(diverged.job, name, resolve=["out:0=keep"])
    assert sources(kafka, diverged.out) == sent
    assert not before - copied(kafka, diverged.out)
    sent += feed(diverged.source, 4, 8, start=20)
    run_job(diverged.job, name, resolve=["out:0=keep"])
    assert sources(kafka, diverged.out) == sent, "the decision is over"
    resolved = [(event["epoch"], event["action"]) for event in run_job.events_of("resolved")]
    assert resolved == [(0, "keep")]


@pytest.mark.turn
@pytest.mark.usefixtures("partition_lanes")
def test_the_epoch_is_published_again(
    kafka: KafkaSettings, run_job: Any, name: str, diverged: Diverged, fail_at: Callable[[str], None]
) -> None:
    fail_at("epoch-committed")  # the replay after this failure publishes nothing a third time
    run_job(diverged.job, name, resolve=["out:0=republish"])
    assert sum(sources(kafka, diverged.out).values()) == 20 + diverged.published
    assert sources(kafka, diverged.out).keys() == diverged.sent.keys()
    run_job(diverged.job, name)
    assert sum(sources(kafka, diverged.out).values()) == 20 + diverged.published


@pytest.mark.turn
@pytest.mark.usefixtures("partition_lanes")
def test_the_other_lanes_become_dead_letters(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, diverged: Diverged
) -> None:
    letters = make_topic(1, "letters")
    with pytest.raises(TopicMissing, match="nowhere"):
        run_job(diverged.job, name, resolve=["out:0=dead-letter:nowhere"])
    run_job(diverged.job, name, resolve=[f"out:0=dead-letter:{letters}"])
    assert sum(sources(kafka, diverged.out).values()) == diverged.published
    assert sources(kafka, diverged.out) + sources(kafka, letters) == diverged.sent


def test_dead_letters_of_an_epoch_that_the_driver_publishes(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, feed: Feed, fail_at: Callable[[str], None]
) -> None:
    source, out, letters = make_topic(2, "in"), make_topic(1, "out"), make_topic(1, "letters")
    sent = feed(source, 2, 10)
    fail_at("plan-committed")
    with pytest.raises(RestartsExhausted):
        run_job(copy(source, out=out), name, restart_policy={"attempts": 0})
    run_job(copy(source, out=out), name, resolve=[f"out:0=dead-letter:{letters}"])
    later = feed(source, 2, 4, start=10)
    run_job(copy(source, out=out), name)
    assert (copied(kafka, letters), copied(kafka, out)) == (sent, later)


def test_an_epoch_that_is_not_in_doubt_cannot_be_decided(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, feed: Feed
) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    sent = feed(source, 1, 5)
    with pytest.raises(SpecError, match="Epoch 7 of out is not in doubt"):
        run_job(copy(source, out=out), name, resolve=["out:7=keep"])
    run_job(copy(source, out=out), name)
    assert copied(kafka, out) == sent


def test_a_new_lineage_does_not_publish_a_committed_epoch_again(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, feed: Feed, fail_at: Callable[[str], None]
) -> None:
    """The crash came between the epoch's commit in the log and Spark's own."""
    source, out = make_topic(2, "in"), make_topic(1, "out")
    sent = feed(source, 2, 10)
    fail_at("epoch-committed")
    with pytest.raises(RestartsExhausted):
        run_job(copy(source, out=out), name, restart_policy={"attempts": 0})
    assert copied(kafka, out) == sent
    run_job(copy(source, out=out), name, code="2", new_lineage=True)
    sent += feed(source, 2, 10, start=10)
    run_job(copy(source, out=out), name)
    assert copied(kafka, out) == sent
    assert claim(kafka, name).owner.lineage == 2


# Code


def test_a_refusal_names_the_parts_of_the_code_that_changed(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, feed: Feed, fail_at: Callable[[str], None]
) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    sent = feed(source, 1, 5)
    fail_at("plan-committed")
    with pytest.raises(RestartsExhausted):
        run_job(copy(source, out=out), name, restart_policy={"attempts": 0}, params={"limit": "1"})
    with pytest.raises(CheckpointMismatch, match=r"in doubt: param limit, param word \(new\), spark.sql.ansi.enabled"):
        run_job(
            copy(source, out=out),
            name,
            params={"limit": "2", "word": "x"},
            spark_conf={"spark.sql.ansi.enabled": "false", "spark.ui.port": "1"},
        )
    run_job(copy(source, out=out), name, params={"limit": "1"})
    assert copied(kafka, out) == sent
