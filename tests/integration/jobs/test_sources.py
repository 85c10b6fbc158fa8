"""Sources by pattern and by assigned partitions, on real Kafka and Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import functions as F

from clonos import faults
from clonos.errors import SourceOffsetsExpired
from clonos.jobs.context import JobContext
from clonos.kafka import client_config
from clonos.log.claiming import claim
from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, read_committed

pytestmark = pytest.mark.broad

MakeTopic = Callable[..., str]


def feed(kafka: KafkaSettings, topic: str, partitions: int, *, each: int = 5) -> Counter[str]:
    producer = Producer(client_config(kafka))
    texts = [(partition, f"{topic}/{partition}/{number}") for partition in range(partitions) for number in range(each)]
    for partition, text in texts:
        producer.produce(topic, text, partition=partition)
    assert producer.flush(30) == 0
    return Counter(text for _, text in texts)


def copied(kafka: KafkaSettings, out: str) -> Counter[str]:
    return Counter((record.value() or b"").decode() for record in read_committed(kafka, out))


def copy(out: str, **source: Any) -> Callable[[JobContext], None]:
    def job(ctx: JobContext) -> None:
        ctx.sink(ctx.source(**source).select(F.col("value").cast("string")), topic=out, name="out")

    return job


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_topics_that_appear_under_a_pattern_are_read_from_their_beginning(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, starting: str
) -> None:
    first, out = make_topic(2, f"{name}-in"), make_topic(1, "out")
    make_topic(1, f"x{name}-in")  # matched in part only
    job = copy(out, pattern=f"{name}-in.*|clonos.*", starting=starting)
    sent = feed(kafka, first, 2)
    run_job(job, name)
    sent = sent if starting == "earliest" else Counter()
    assert copied(kafka, out) == sent
    late = make_topic(3, f"{name}-in")
    sent += feed(kafka, late, 3) + feed(kafka, first, 1)
    run_job(job, name)
    # The user's pattern matches the job's own causal log, but the job does not read it.
    assert copied(kafka, out) == sent


def test_a_patterns_topics_start_at_their_starting_offsets(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    first, second, out = make_topic(1, f"{name}-in"), make_topic(2, f"{name}-in"), make_topic(1, "out")
    sent = feed(kafka, first, 1) + feed(kafka, second, 2)
    run_job(copy(out, pattern=f"{name}-.*|__.*", starting={first: {0: 3}}), name)
    skipped = Counter(f"{first}/0/{number}" for number in range(3))
    assert copied(kafka, out) == sent - skipped


def test_assigned_partitions_only(kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic) -> None:
    first, second, out = make_topic(3, "in"), make_topic(2, "in"), make_topic(1, "out")
    sent = feed(kafka, first, 3) + feed(kafka, second, 2)
    run_job(copy(out, assign={first: [2, 0], second: [1]}, starting={first: {2: 4}}), name)
    wanted = {text for text in sent if text.startswith((f"{first}/0/", f"{first}/2/4", f"{second}/1/"))}
    assert copied(kafka, out) == Counter(wanted)


@pytest.mark.parametrize("how", ["pattern", "assign"])
def test_progress_and_retention(kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, how: str) -> None:
    source, out = make_topic(2, f"{name}-in"), make_topic(1, "out")
    job = copy(out, **({"pattern": f"{name}-.*"} if how == "pattern" else {"assign": {source: [1]}}))
    feed(kafka, source, 2)
    run_job(job, name)
    admin = AdminClient(client_config(kafka))
    group = f"clonos.{name}.out"

    def offsets() -> dict[tuple[str, int], int]:
        answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(60)
        return {(tp.topic, tp.partition): tp.offset for tp in answer.topic_partitions}

    expected = {(source, 0): 5, (source, 1): 5} if how == "pattern" else {(source, 1): 5}
    eventually(lambda: offsets() == expected, "lag tools see the job")
    feed(kafka, source, 2)
    admin.delete_records([TopicPartition(source, 1, 7)])[TopicPartition(source, 1)].result(60)
    with pytest.raises(SourceOffsetsExpired, match=rf"{source}\[1\] needs 5, has 7"):
        run_job(job, name)


def test_a_deleted_topic_of_a_pattern_is_refused(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    source, other, out = make_topic(1, f"{name}-in"), make_topic(1, f"{name}-in"), make_topic(1, "out")
    feed(kafka, source, 1)
    feed(kafka, other, 1)
    job = copy(out, pattern=f"{name}-.*")
    run_job(job, name)
    admin = AdminClient(client_config(kafka))
    admin.delete_topics([other])[other].result(60)
    eventually(lambda: other not in admin.list_topics(timeout=5).topics, "the topic is deleted")
    with pytest.raises(SourceOffsetsExpired, match=rf"{other}\[0\] needs 5, does not exist"):
        run_job(job, name)


@pytest.mark.parametrize("how", ["topics", "pattern"])
def test_an_epoch_over_topics_of_colliding_names_is_replayed(
    kafka: KafkaSettings,
    run_job: Any,
    name: str,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    how: str,
) -> None:
    """Spark's source keeps the partitions of such topics in an order of insertion, which differs in a replay."""
    inputs = [make_topic(2, exactly=f"{name}-{letter}1") for letter in "cab"]
    out = make_topic(1, "out")
    sent = sum((feed(kafka, topic, 2) for topic in inputs), Counter[str]())
    job = copy(out, **({"topics": inputs} if how == "topics" else {"pattern": f"{name}-.*"}))
    monkeypatch.setenv("CLONOS_FAULT_LOG", str(tmp_path / "faults"))
    monkeypatch.setattr(faults, "_FAULTS", faults.parse("plan-committed:raise"))
    run_job(job, name)
    assert copied(kafka, out) == sent
    scans = claim(kafka, name).state.plans["out", 0][1].scans
    ranges = [(part.topic, part.partition) for part in scans[0]]
    assert ranges == sorted((topic, partition) for topic in inputs for partition in range(2))


def test_a_pattern_without_a_topic_waits_for_the_first(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    out = make_topic(1, "out")
    job = copy(out, pattern=f"{name}-.*")
    run_job(job, name)
    assert copied(kafka, out) == Counter()
    sent = feed(kafka, make_topic(2, f"{name}-in"), 2)
    run_job(job, name)
    assert copied(kafka, out) == sent
