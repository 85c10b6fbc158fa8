"""A lane for each partition, which the partition's task publishes, on a real broker (`clonos_sinks.kafka.partitioned`).

`test_sink_contract.py` loses and pauses tasks between every two steps of the protocol.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from clonos import faults
from clonos.causal.determinants import Recorder
from clonos.causal.epoch_scope import EpochScope
from clonos.errors import BrokerLimit, CheckpointMismatch, EpochFailed, RecordRejected, Superseded
from clonos.extend.sink import LaneReport
from clonos.faults import LANE_POINTS
from clonos.kafka import java_options
from clonos.log.claiming import Claimant, Ownership, claim
from clonos.log.control import lane_id
from clonos.log.records import Determinant, InputSlice, LaneAssignment, Marker
from clonos.log.transaction import TransactionalProducer
from clonos.settings import KafkaSettings
from clonos.spark.internals import jvm_of
from clonos.testing import epoch_writes
from clonos.testing.harness import eventually, has_open_transaction, read_committed
from clonos_sinks.kafka import KafkaSink, clients, partitioned, read_ahead
from clonos_sinks.kafka.clients import NewestProducer
from clonos_sinks.kafka.lane import Lane
from support.lanes import Row, epoch_of, frame_of, publish, publish_with, with_tail, writes_of

MakeTopic = Callable[..., str]


def rows(topic: str, epoch: int = 0, count: int = 3) -> list[Row]:
    return [Row(topic, b"k", f"{epoch}-{number}".encode()) for number in range(count)]


def values(kafka: KafkaSettings, topic: str) -> list[str]:
    return [(message.value() or b"").decode() for message in read_committed(kafka, topic)]


def test_publishes_once_and_replays_nothing(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    out = make_topic()
    first = publish(spark, claim(kafka, name), rows(out))
    again = publish(spark, claim(kafka, name), rows(out))
    assert (first.outcome, again.outcome, again.diverged) == ("published", "audited", False)
    assert values(kafka, out) == ["0-0", "0-1", "0-2"]


def test_audit_detects_a_different_replay_but_not_another_order(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    out = make_topic()
    own = claim(kafka, name)
    publish(spark, own, rows(out))
    own = Claimant(kafka, name, [own.owner.claim_id]).claim()
    epoch = msgspec.structs.replace(epoch_of(own), committed=True)  # a divergence is reported, not raised
    assert not publish(spark, own, list(reversed(rows(out))), epoch).diverged
    assert publish(spark, own, rows(out, count=2), epoch).diverged
    assert len(values(kafka, out)) == 3


def test_the_marker_is_that_of_the_lane(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """The task completes the marker's head in Java."""
    out = make_topic()
    own = claim(kafka, name)
    report = publish(spark, own, rows(out, count=300), 7)
    epoch = epoch_of(own, 7)
    (lane,) = epoch.lanes
    tail = eventually(
        lambda: own.reader.own_tail(lane.log_partition, own.owner, "lane", tail_offset=own.claimed[1]),
        "the marker is visible",
    )
    assert tail.offset == report.marker_offset
    assert tail.record == Marker(own.owner, "out", 7, 0, lane.input_slice, 300, report.digest)


def test_a_rehearsal_connects_as_a_first_transaction_does_and_fences_nobody(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the first transaction of a takeover loads Kafka's clients in each executor."""
    out, own = make_topic(), claim(kafka, name)
    publish(spark, own, rows(out))
    names = [lane_id(name, "out", 0)]
    newest = clients.newest_producers(spark, java_options(kafka), names)
    for options, refusal in (({}, None), ({"compression.type": "nonsense"}, "compression.type")):
        writes = writes_of(spark, KafkaSink("out"), own)
        monkeypatch.setattr(partitioned, "producer_options", lambda *_, more=options: more)
        monkeypatch.setattr(writes.writer, "begin", writes.writer.rehearse)
        monkeypatch.setattr(writes.writer, "publish", lambda *_: [])
        with contextlib.nullcontext() if refusal is None else pytest.raises(EpochFailed, match=refusal):
            writes.write(frame_of(spark, []), epoch_of(own, 1))
    assert clients.newest_producers(spark, java_options(kafka), names) == newest


def test_a_lane_that_is_fenced_while_it_publishes_is_superseded(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    out = make_topic()
    own = claim(kafka, name)
    with faults.acting("lane-produced", lambda: claim(kafka, name)), pytest.raises(Superseded):
        publish(spark, own, rows(out))
    assert values(kafka, out) == []


def test_a_claim_between_the_check_and_the_init_of_a_lane_is_detected(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """The late init fences the successor's producer; it must not publish."""
    out = make_topic()
    own = claim(kafka, name)
    with faults.acting("state-committed", lambda: claim(kafka, name)), pytest.raises(Superseded):
        publish(spark, own, rows(out))
    assert values(kafka, out) == []


def test_without_the_check_of_the_owner_a_superseded_driver_would_publish(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutants of step 1 and of the comparison before the commit.

    A successor claims the job before the newest producer of the lane is read. Without step 1, as with a read from a
    leader that Kafka has replaced, the offset of the marker shows that there is a claim before it.
    """
    out = make_topic()
    read = read_ahead.newest_producers

    def late(*arguments: Any) -> Any:
        claim(kafka, name)
        return read(*arguments)

    monkeypatch.setattr(read_ahead, "newest_producers", late)
    with pytest.raises(Superseded):
        publish(spark, claim(kafka, name), rows(out))
    for module in (partitioned, epoch_writes):
        monkeypatch.setattr(module, "require_job", lambda _epoch: None)
    with pytest.raises(EpochFailed, match="has not read the claim"):
        publish(spark, claim(kafka, name), rows(out))
    assert values(kafka, out) == []
    own = claim(kafka, name)
    assert publish(spark, own, rows(out), with_tail(epoch_of(own), -1)).outcome == "published"


def test_determinants_between_the_claim_and_the_marker_are_not_a_claim(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    out = make_topic()
    own = claim(kafka, name)
    epoch = epoch_of(own)
    scope = EpochScope(
        epoch.identity, 0, 0, depth="full", log_partitions=(1,), start_offsets={1: 0}, claim_offsets={1: 0}, params={}
    )
    for task in range(3):
        recorder = Recorder(lambda: kafka, scope, "service", task)
        recorder.add(Determinant(b"key", b"answer"))
        recorder.flush()
    report = publish(spark, own, rows(out), epoch)
    assert report.outcome == "published"
    assert report.marker_offset == epoch.lanes[0].log_end + 3


def test_another_init_since_the_plan_fails_the_epoch(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """An init that no claim announced, as of a late task of an earlier attempt: the epoch is replayed."""
    out = make_topic()
    own = claim(kafka, name)
    epoch = epoch_of(own)

    def intrude() -> None:
        TransactionalProducer(kafka, lane_id(name, "out", 0), own.topic).dispose()

    with faults.acting("state-committed", intrude), pytest.raises(EpochFailed, match="opened more than once"):
        publish(spark, own, rows(out), epoch)
    assert values(kafka, out) == []


@pytest.fixture
def opened(spark: SparkSession) -> Callable[[Ownership], int]:
    """Number of producers that were opened for the lane of an owner so far."""

    def count(own: Ownership) -> int:
        name = lane_id(own.job, "out", 0)
        return clients.newest_producers(spark, java_options(own.kafka), [name])[name].epoch

    return count


def test_a_producer_is_kept_while_its_marker_is_the_newest_record(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic, opened: Callable[[Ownership], int]
) -> None:
    out = make_topic()
    own = claim(kafka, name)
    own.ensure_lanes("out", 1)

    def transactions(report: LaneReport | None, epoch: int) -> tuple[LaneReport, int]:
        before = opened(own)
        fresh = epoch_of(own, epoch, replay=False)
        report = publish(spark, own, rows(out, epoch), with_tail(fresh, report.marker_offset) if report else fresh)
        return report, opened(own) - before

    first, raised = transactions(None, 0)
    assert raised == 2, "an init and a transaction"
    second, raised = transactions(first, 1)
    assert raised == 1, "a transaction (KIP-890)"
    own.claim_lanes([LaneAssignment("out", 0, 1)])  # as before a truncation
    renewed, raised = transactions(None, 2)
    assert raised == 2, "a claim follows the marker"
    assert renewed.marker_offset > second.marker_offset > first.marker_offset
    assert len(values(kafka, out)) == 9


def test_the_newest_producer_is_read_ahead_until_a_claim_follows(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = make_topic()
    own = claim(kafka, name)
    sink = KafkaSink("out")
    sink.check(kafka)
    writes = writes_of(spark, sink, own)
    waiting: list[str] = []
    read = read_ahead.newest_producers

    def newest(*arguments: Any) -> Any:
        if not threading.current_thread().name.startswith("clonos-read-ahead"):
            waiting.extend(arguments[2])
        return read(*arguments)

    monkeypatch.setattr(read_ahead, "newest_producers", newest)

    def publish_next(epoch: int, offset: int) -> tuple[int, int]:
        """Number of questions that the epoch waited for, and the offset of its marker."""
        waiting.clear()
        planned = with_tail(epoch_of(own, epoch, replay=False), offset)
        marker = publish_with(spark, writes, own, rows(out, epoch), planned).marker_offset
        return len(waiting), marker

    asked, marker = publish_next(0, -1)
    assert asked == 1
    asked, marker = publish_next(1, marker)
    assert asked == 0
    own.claim_lanes([LaneAssignment("out", 0, 1)])  # as before a truncation: it opens the lane
    asked, marker = publish_next(2, own.tail_offsets[1])
    assert asked == 1, "a claim follows the marker"
    with faults.acting("lane-produced", lambda: claim(kafka, name)), pytest.raises(Superseded):
        publish_next(3, marker)
    assert len(values(kafka, out)) == 9


@pytest.mark.turn
def test_more_producers_are_kept_than_twice_the_cores_of_a_small_machine(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    out = make_topic()
    owned = [claim(kafka, f"{name}-{number}") for number in range(6)]
    ids = [lane_id(own.job, "out", 0) for own in owned]

    def opened() -> list[int]:
        newest = clients.newest_producers(spark, java_options(kafka), ids)
        return [newest[transactional_id].epoch for transactional_id in ids]

    first = [publish(spark, own, rows(out), epoch_of(own, 0, replay=False)) for own in owned]
    before = opened()
    for own, report in zip(owned, first, strict=True):
        publish(spark, own, rows(out, 1), with_tail(epoch_of(own, 1, replay=False), report.marker_offset))
    assert [after - epoch for after, epoch in zip(opened(), before, strict=True)] == [1] * 6, "a transaction each"


def test_the_memory_of_a_kept_producer_is_that_of_the_batches_of_all_partitions(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    batch, partitions = 100_000, 8
    out = make_topic(partitions)
    options = {"transactional.id": name, "batch.size": str(batch), "linger.ms": "10000", "enable.metrics.push": "false"}
    producer = clients.JvmProducer(spark, java_options(kafka) | options)
    producer.init()
    for records in (partitions, 1):  # Kafka's client keeps the memory
        producer.begin()
        for partition in range(records):
            producer.mark(out, partition, b"x")
        producer.commit()
        assert partitions * batch <= producer.java.bufferBytes() < (partitions + 1) * batch
    producer.close()


def test_a_lane_whose_transactional_id_has_expired_is_published(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka forgets a transactional id that is not used for a week; then any first init has epoch 0."""
    out = make_topic()
    own = claim(kafka, name)
    epoch = epoch_of(own)
    unused = lane_id(f"{name}-unused", "out", 0)
    assert clients.newest_producers(spark, java_options(kafka), [unused]) == {unused: NewestProducer(-1, -1)}
    monkeypatch.setattr(Lane, "transactional_id", unused)
    assert publish(spark, own, rows(out), epoch).outcome == "published"
    # Kafka now knows a producer, which is not the first one.
    monkeypatch.setattr(read_ahead, "newest_producers", lambda *_: {unused: NewestProducer(-1, -1)})
    with pytest.raises(EpochFailed, match="opened more than once"):
        publish(spark, own, rows(out, 1), epoch_of(own, 1, replay=False))
    assert len(values(kafka, out)) == 3


def test_the_next_producer_has_the_next_epoch_or_a_new_id_after_the_last_one(spark: SparkSession) -> None:
    def follows(known: tuple[int, int], opened: tuple[int, int]) -> bool:
        newest = jvm_of(spark).clonos.ClusterAdmin.NewestProducer
        return bool(newest(*known).isFollowedBy(newest(*opened)))

    last = 32_766
    assert follows((7, 3), (7, 4))
    assert not any(follows((7, 3), opened) for opened in ((7, 3), (7, 5), (8, 4), (8, 0)))
    assert follows((7, last - 1), (7, last))
    assert follows((7, last), (8, 0))
    assert not any(follows((7, last), opened) for opened in ((7, last), (8, 1)))
    assert follows((-1, -1), (9, 0))
    assert not follows((-1, -1), (9, 1))


def test_a_timeout_that_the_broker_no_longer_allows_is_named(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    sink = KafkaSink("out", transaction_timeout_ms=10**9)  # the check at the start would refuse it
    own = claim(kafka, name)
    with pytest.raises(BrokerLimit, match="transaction timeout") as refused:
        publish_with(spark, writes_of(spark, sink, own), own, rows(make_topic()))
    assert not refused.value.retry


@pytest.fixture
def interrupting(spark: SparkSession) -> Iterator[None]:
    """Spark interrupts the other tasks of a failed job, as it does for streaming queries."""
    spark.sparkContext.setJobGroup("interrupting", "interrupting", interruptOnCancel=True)
    yield
    for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
        spark.sparkContext.setLocalProperty(name, None)  # type: ignore[arg-type]


@pytest.mark.usefixtures("interrupting")
def test_a_task_that_spark_interrupts_aborts_its_transaction(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Another task fails for good while this one is in its transaction: no claim follows that would end it."""
    out, sending, failed = make_topic(), tmp_path / "sending", threading.Event()
    own = claim(kafka, name)
    partitions = own.ensure_lanes("out", 2)
    epoch = epoch_of(own)
    lanes = [
        msgspec.structs.replace(epoch.lanes[0], number=number, task=number, log_partition=partitions[number])
        for number in range(2)
    ]
    epoch = msgspec.structs.replace(epoch, lanes=tuple(lanes))
    sink = KafkaSink("out", topic=out)
    sink.check(kafka)

    def late_failure(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            size = 10
            if batch.column(0).to_pylist() == [1]:
                eventually(sending.exists, "the other task sends", timeout_s=60)
                size = 2_000_000
            yield pa.RecordBatch.from_pydict({"value": [b"x" * size]})

    def pause() -> None:
        sending.touch()
        assert failed.wait(60)

    frame = spark.range(0, 2, 1, 2).mapInArrow(late_failure, "value binary")
    with faults.acting("lane-produced", pause, lane=0):
        with pytest.raises(RecordRejected):
            writes_of(spark, sink, own).write(frame, epoch)
        failed.set()
        eventually(lambda: not has_open_transaction(kafka, out), "no transaction is open", timeout_s=20)
    assert values(kafka, out) == []


def test_lane_refuses_older_epoch_and_other_input(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    out = make_topic()
    publish(spark, claim(kafka, name), rows(out, 5), 5)
    own = claim(kafka, name)
    with pytest.raises(CheckpointMismatch, match="already published epoch 5"):
        publish(spark, own, rows(out, 4), 4)
    other = epoch_of(own, 5, input_slice=InputSlice("range", "in", 1, 0, 3))
    with pytest.raises(CheckpointMismatch, match="published epoch 5 from"):
        publish(spark, own, rows(out, 5), other)
    assert len(values(kafka, out)) == 3


def test_empty_lane_writes_no_marker(spark: SparkSession, kafka: KafkaSettings, name: str) -> None:
    own = claim(kafka, name)
    assert publish(spark, own, []).outcome == "empty"
    tail = own.reader.tail(1)
    assert tail is not None
    assert not isinstance(tail.record, Marker)


def test_new_lineage_ignores_older_markers(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    out = make_topic()
    own = claim(kafka, name)
    publish(spark, own, rows(out, 7), 7)
    fresh = claim(kafka, name, new_lineage={})
    assert fresh.owner.lineage == own.owner.lineage + 1
    assert publish(spark, fresh, rows(out)).outcome == "published"
    assert len(values(kafka, out)) == 6


class Pause:
    """Pauses the first lane that reaches a point."""

    def __init__(self) -> None:
        self.reached, self.ended = threading.Event(), threading.Event()

    def __call__(self) -> None:
        if not self.reached.is_set():
            self.reached.set()
            self.ended.wait(60)


@pytest.mark.parametrize("step", LANE_POINTS)
def test_zombie_between_steps(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic, step: str
) -> None:
    """A task pauses at the step; a successor publishes; the zombie publishes nothing more."""
    out = make_topic()
    old = claim(kafka, name)
    pause = Pause()
    with faults.acting(step, pause), ThreadPoolExecutor(1) as pool:
        zombie = pool.submit(publish, spark, old, rows(out), epoch_of(old, replay=False))
        assert pause.reached.wait(60)
        successor = claim(kafka, name)
        report = publish(spark, successor, rows(out))
        assert report.outcome == ("audited" if step == "lane-committed" else "published")
        pause.ended.set()
        if step == "lane-committed":
            assert zombie.result(60).outcome == "published"
        else:
            assert isinstance(zombie.exception(60), Superseded)
    assert values(kafka, out) == ["0-0", "0-1", "0-2"]
    eventually(lambda: not has_open_transaction(kafka, out), "no transaction is open")


def test_zombie_past_its_transaction_timeout(
    spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic
) -> None:
    """The broker aborts a transaction that outlives its timeout; the continued task never commits it."""
    out = make_topic()
    old = claim(kafka, name)
    pause = Pause()
    with faults.acting("lane-marked", pause), ThreadPoolExecutor(1) as pool:
        epoch = epoch_of(old, replay=False)
        zombie = pool.submit(publish, spark, old, rows(out), epoch, transaction_timeout_ms=1_000)
        assert pause.reached.wait(60)
        successor = claim(kafka, name)
        publish(spark, successor, rows(out))
        publish(spark, successor, rows(out, 1), 1)
        pause.ended.set()
        assert isinstance(zombie.exception(60), Superseded)
    assert values(kafka, out) == ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"]
