"""Sources by pattern and by assigned partitions, on real Kafka and Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from clonos.driver.options import RunOptions
from clonos.driver.positions import Positions
from clonos.driver.topic_ids import TopicIds
from clonos.errors import CheckpointMismatch, EpochFailed, RestartsExhausted, SourceNotRepeatable, SourceOffsetsExpired
from clonos.jobs.context import JobContext
from clonos.jobs.definition import JobFunction
from clonos.kafka import client_config
from clonos.log.claiming import claim
from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, read_committed
from clonos_connectors.kafka import KafkaSource
from support.driver_thread import DriverThread

pytestmark = pytest.mark.full

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


@pytest.mark.ci
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


@pytest.mark.ci
def test_assigned_partitions_only(kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic) -> None:
    first, second, out = make_topic(3, "in"), make_topic(2, "in"), make_topic(1, "out")
    sent = feed(kafka, first, 3) + feed(kafka, second, 2)
    run_job(copy(out, assign={first: [2, 0], second: [1]}, starting={first: {2: 4}}), name)
    wanted = {text for text in sent if text.startswith((f"{first}/0/", f"{first}/2/4", f"{second}/1/"))}
    assert copied(kafka, out) == Counter(wanted)
    for fewer, left in (
        ({"assign": {first: [2], second: [1]}}, rf"{first}\[0\]"),
        ({"topics": [first]}, rf"{second}\[1\]"),
        ({"pattern": first}, rf"{second}\[1\]"),
    ):
        with pytest.raises(CheckpointMismatch, match=f"query out has read {left}, which its sources do not select"):
            run_job(copy(out, **fewer), name)
    sent = feed(kafka, first, 3)
    run_job(copy(out, topics=[first, second]), name)  # more partitions are read from their beginning
    assert copied(kafka, out) - Counter(wanted) >= Counter({text: sent[text] for text in sent if "/1/" not in text})


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


def delete(kafka: KafkaSettings, topic: str) -> None:
    admin = AdminClient(client_config(kafka))
    admin.delete_topics([topic])[topic].result(60)
    eventually(lambda: topic not in admin.list_topics(timeout=60).topics, "the topic is deleted")


@pytest.mark.parametrize("fault", ["", "plan-committed", "epoch-committed"])
def test_a_topic_of_a_pattern_that_was_read_to_its_end_may_be_deleted(
    kafka: KafkaSettings,
    run_job: Any,
    name: str,
    make_topic: MakeTopic,
    fail_at: Callable[[str], None],
    fault: str,
) -> None:
    source, other, out = make_topic(1, f"{name}-in"), make_topic(1, f"{name}-in"), make_topic(1, "out")
    job = copy(out, pattern=f"{name}-.*")
    sent = feed(kafka, source, 1) + feed(kafka, other, 1)
    run_job(job, name)
    delete(kafka, other)
    sent += feed(kafka, source, 1)
    if fault:
        fail_at(fault)
    run_job(job, name)
    assert copied(kafka, out) == sent
    assert run_job.events_of("source-topics-deleted")[0]["topics"] == [other]
    # A new topic may have the same name: it is read from its beginning, also after a restart.
    make_topic(2, exactly=other)
    sent += feed(kafka, other, 2)
    run_job(job, name)
    sent += feed(kafka, other, 2)
    run_job(job, name)
    assert copied(kafka, out) == sent


def test_a_topic_that_a_broker_does_not_list_is_not_deleted(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Spark sees it after its right to describe the topic is revoked: later, Spark would read it from its start."""
    source, other, out = make_topic(1, f"{name}-in"), make_topic(1, f"{name}-in"), make_topic(1, "out")
    job = copy(out, pattern=f"{name}-.*")
    sent = feed(kafka, source, 1) + feed(kafka, other, 1)
    run_job(job, name)
    sent += feed(kafka, source, 1)
    with monkeypatch.context() as revoked:
        revoked.setattr(KafkaSource, "_whole_pattern", lambda _source, _spark: source)
        revoked.setattr(Positions, "check_selected", lambda *_: None)  # the pattern stands for the broker
        with pytest.raises(SourceOffsetsExpired):
            run_job(job, name)
    run_job(job, name)
    assert copied(kafka, out) == sent
    ids = TopicIds(kafka)
    with pytest.raises(EpochFailed, match=rf"without \['{other}'\], which exist"):
        ids.forget([other])
    delete(kafka, other)
    ids.forget([other])


def test_the_only_topic_of_a_pattern_may_be_deleted(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    source, out = make_topic(1, f"{name}-in"), make_topic(1, "out")
    job = copy(out, pattern=f"{name}-.*")
    sent = feed(kafka, source, 1)
    run_job(job, name)
    delete(kafka, source)
    run_job(job, name)
    sent += feed(kafka, make_topic(1, f"{name}-in"), 1)
    run_job(job, name)
    assert copied(kafka, out) == sent


@pytest.mark.parametrize("fault", ["offsets-logged,epoch=1", "plan-committed,epoch=1", "plan-committed,epoch=0"])
def test_a_deleted_topic_of_a_pattern_with_unread_records_is_refused(
    kafka: KafkaSettings,
    run_job: Any,
    name: str,
    make_topic: MakeTopic,
    fail_at: Callable[[str], None],
    fault: str,
) -> None:
    source, other, out = make_topic(1, f"{name}-in"), make_topic(1, f"{name}-in"), make_topic(1, "out")
    feed(kafka, source, 1)
    feed(kafka, other, 1)
    job = copy(out, pattern=f"{name}-.*", max_per_epoch=4)
    fail_at(fault)
    with pytest.raises(RestartsExhausted, match=fault.partition(",")[0]):
        run_job(job, name, restart_policy={"attempts": 0})
    delete(kafka, other)
    with pytest.raises(SourceOffsetsExpired, match=rf"{other}\[0\] needs \d, does not exist"):
        run_job(job, name)


@pytest.fixture
def running(
    spark: SparkSession, kafka: KafkaSettings, name: str, tmp_path: Path
) -> Iterator[Callable[..., DriverThread]]:
    """Runs a job function in a thread until the test ends."""
    started: list[DriverThread] = []

    def start(function: JobFunction) -> DriverThread:
        started.append(DriverThread(spark, kafka, function, name, RunOptions(checkpoint=str(tmp_path / "running"))))
        return started[-1]

    yield start
    for job in started:
        job.driver.stop()
        job.join()


@pytest.mark.ci
def test_a_topic_of_a_pattern_may_be_deleted_while_the_job_runs(
    kafka: KafkaSettings, running: Callable[..., DriverThread], name: str, make_topic: MakeTopic
) -> None:
    source, other, out = make_topic(1, f"{name}-in"), make_topic(2, f"{name}-in"), make_topic(1, "out")
    sent = feed(kafka, source, 1) + feed(kafka, other, 2)
    job = running(copy(out, pattern=f"{name}-.*"))
    eventually(lambda: job.failure or copied(kafka, out) == sent, "all is copied", timeout_s=60)
    delete(kafka, other)
    eventually(
        lambda: job.failure or [event for event in job.events if event["event"] == "source-topics-deleted"],
        "the job continues without the topic",
    )
    make_topic(1, exactly=other)
    sent += feed(kafka, source, 1) + feed(kafka, other, 1)
    eventually(lambda: job.failure or copied(kafka, out) == sent, "all is copied", timeout_s=60)
    assert job.failure is None


@pytest.mark.parametrize("other_topics", [0, 1])
def test_unread_records_of_a_topic_that_is_deleted_while_the_job_runs_stop_the_job(
    kafka: KafkaSettings, running: Callable[..., DriverThread], name: str, make_topic: MakeTopic, other_topics: int
) -> None:
    deleted, out = make_topic(1, f"{name}-in"), make_topic(1, "out")
    for _ in range(other_topics):
        feed(kafka, make_topic(1, f"{name}-in"), 1)
    feed(kafka, deleted, 1, each=10_000)
    job = running(copy(out, pattern=f"{name}-.*", max_per_epoch=2))
    eventually(lambda: job.failure or copied(kafka, out), "the job reads", timeout_s=60)
    delete(kafka, deleted)
    eventually(lambda: job.failure, "the job stops", timeout_s=100)
    assert isinstance(job.failure, SourceOffsetsExpired)


def test_a_compacted_topic_of_a_pattern_is_refused(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    source, out = make_topic(1, f"{name}-in"), make_topic(1, "out")
    admin = AdminClient(client_config(kafka))
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, source, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(60)
    with pytest.raises(SourceNotRepeatable, match=f"{source} is compacted"):
        run_job(copy(out, pattern=f"{name}-.*"), name)
    run_job(copy(out, pattern=f"{name}-.*", compacted=True), name)


@pytest.mark.parametrize("how", ["topics", "pattern"])
def test_an_epoch_over_topics_of_colliding_names_is_replayed(
    kafka: KafkaSettings,
    run_job: Any,
    name: str,
    make_topic: MakeTopic,
    fail_at: Callable[[str], None],
    how: str,
) -> None:
    """Spark's source keeps the partitions of such topics in an order of insertion, which differs in a replay."""
    inputs = [make_topic(2, exactly=f"{name}-{letter}1") for letter in "cab"]
    out = make_topic(1, "out")
    sent = sum((feed(kafka, topic, 2) for topic in inputs), Counter[str]())
    job = copy(out, **({"topics": inputs} if how == "topics" else {"pattern": f"{name}-.*"}))
    fail_at("plan-committed")
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
