"""A job that lost a sink or a topic of its past, and the user's decisions about epochs in doubt."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import functions as F

import clonos
from clonos.driver.topic_ids import TopicIds
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
from clonos.kafka import client_config
from clonos.log.claiming import claim
from clonos.log.topic import log_topic
from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, read_committed
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


def test_a_source_topic_that_is_created_again_is_noticed_while_the_job_runs(
    kafka: KafkaSettings, make_topic: MakeTopic, create_again: Any
) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    ids = TopicIds(kafka, every_s=0.1)
    assert ids.of([source, out, "nowhere"]).keys() == {source, out}
    ids.watch(ignored=[out])
    try:
        create_again(out, 1)
        ids.check()
        create_again(source, 1)

        def noticed() -> bool:
            try:
                ids.check()
            except SourceOffsetsExpired as error:
                return source in error.what and out not in error.what
            return False

        eventually(noticed, "the new id is noticed")
    finally:
        ids.stop()


def test_a_log_topic_that_is_created_again_is_noticed_while_the_job_runs(
    kafka: KafkaSettings, make_topic: MakeTopic, create_again: Any
) -> None:
    source, log = make_topic(1, "in"), make_topic(1, "log")
    ids = TopicIds(kafka, every_s=0.1)
    ids.of([source])
    ids.watch(log=log)
    try:
        eventually(lambda: log in ids.of([log]), "the log is watched")
        create_again(log, 1)

        def noticed() -> bool:
            try:
                ids.check()
            except CausalLogDamaged as error:
                return log in error.what
            return False

        eventually(noticed, "the new id is noticed")
    finally:
        ids.stop()


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
