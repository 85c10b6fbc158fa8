"""Epochs whose rows the tasks spool in the driver's JVM: the driver publishes them in one transaction."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from clonos import faults
from clonos.driver import epochs
from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import ensure_jars
from clonos.errors import EpochFailed, RestartsExhausted, SinkTopicDeleted, Superseded
from clonos.extend.sink import LaneReport, SinkEpoch, SinkLane
from clonos.jobs.context import JobContext
from clonos.kafka import client_config
from clonos.log.claiming import claim
from clonos.log.control import lane_id
from clonos.log.reading import LogReader, Tail
from clonos.settings import KafkaSettings, Settings
from clonos.spark.internals import jvm_of
from clonos.spark.lane_sink import LaneRows
from clonos.testing.harness import Deadline, eventually, has_open_transaction, read_committed
from clonos_sinks.kafka import KafkaSink, spooled
from clonos_sinks.kafka.clients import JvmProducer
from clonos_sinks.kafka.lane import Lane
from clonos_sinks.kafka.spooled import SpooledLane
from support.brokers.delaying import DelayingLink
from support.brokers.older import downgrade_transactions
from support.brokers.severed import SeveredCluster
from support.lanes import lanes_of_partitions

MakeTopic = Callable[..., str]
SENT_MS = time.time_ns() // 1_000_000 - 60_000
# The points that the driver reaches; `state-committed` comes first here, because all tasks end before step 1.
POINTS = (
    "plan-committed",
    "state-committed",
    "lane-initialised",
    "lane-tail-read",
    "lane-decided",
    "lane-begun",
    "lane-produced",
    "lane-marked",
    "lane-committed",
    "epoch-committed",
    "epoch-done",
)


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The epochs that spooled lanes published or compared, and the bytes of their rows."""
    epochs: list[tuple[int, int]] = []
    publish = SpooledLane.publish

    def noted(lane: SpooledLane, epoch: Any, rows: Any) -> Any:
        reports = publish(lane, epoch, rows)
        epochs.append((epoch.identity.epoch, rows.size))
        return reports

    monkeypatch.setattr(SpooledLane, "publish", noted)
    return epochs


def feed(kafka: KafkaSettings, topic: str, count: int, partitions: int = 2, start: int = 0) -> None:
    producer = Producer(client_config(kafka))
    for number in range(start, start + count):
        producer.produce(topic, f"{number}".encode(), partition=number % partitions, timestamp=SENT_MS + number)
    assert producer.flush(30) == 0


def job(source: str, topic: str, shape: Callable[[DataFrame], DataFrame], **sink: Any) -> Any:
    def define(ctx: JobContext) -> None:
        ctx.sink(shape(ctx.source(source)), topic=topic, name="out", **sink)

    return define


def plain(frame: DataFrame) -> DataFrame:
    return frame.select("value")


def seen(message: Message) -> tuple[object, ...]:
    """What a consumer sees of a record."""
    headers = tuple(message.headers() or ())
    return message.partition(), message.key(), message.value(), headers, message.timestamp()


def values(kafka: KafkaSettings, topic: str) -> Counter[bytes | None]:
    return Counter(message.value() for message in read_committed(kafka, topic))


def test_the_records_are_those_of_lanes_for_each_partition(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_topic(2, "in")
    feed(kafka, source, 40)

    def shape(frame: DataFrame) -> DataFrame:
        number = F.col("value").cast("string").cast("int")
        header = F.struct(F.lit("n").alias("key"), F.when(number % 3 == 0, F.col("value")).alias("value"))
        return frame.select(
            F.when(number % 4 != 0, F.concat(F.lit("ключ"), number)).alias("key"),
            F.when(number % 5 != 0, F.col("value")).alias("value"),
            F.when(number % 2 == 0, F.lit(1)).alias("partition"),
            F.when(number % 7 != 0, F.array(header, header)).alias("headers"),
            F.col("timestamp"),
        )

    by_lane = {}
    for lanes in ("driver", "partition"):
        if lanes == "partition":
            monkeypatch.setattr(KafkaSink, "has_one_lane", lanes_of_partitions)
        out = make_topic(3, "out")
        run_job(job(source, out, shape), f"{name}-{lanes}", checkpoint=lanes)
        by_lane[lanes] = Counter(map(seen, read_committed(kafka, out)))
    assert by_lane["driver"].total() == 40
    assert by_lane["driver"] == by_lane["partition"]


@pytest.mark.parametrize("point", ["plan-committed", "epoch-committed"])
def test_an_epoch_in_doubt_with_a_lane_for_each_partition_is_finished_with_them(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """A job that moves from a cluster to a local master; the start after that has one lane."""
    source, out = make_topic(2, "in"), make_topic(2, "out")
    feed(kafka, source, 10)

    def fail() -> None:
        raise EpochFailed("injected")

    with monkeypatch.context() as on_cluster:
        on_cluster.setattr(KafkaSink, "has_one_lane", lanes_of_partitions)
        with faults.acting(point, fail, epoch=0), pytest.raises(RestartsExhausted):
            run_job(job(source, out, plain), name, restart_policy={"attempts": 0})
    for number in range(2):
        feed(kafka, source, 10)
        run_job(job(source, out, plain), name)
        assert values(kafka, out) == Counter({str(row).encode(): number + 2 for row in range(10)})
    published = [event["published_lanes"] for event in run_job.events_of("epoch")]
    assert set(published[:-1]) == {2}
    assert published[-1] == 1


@pytest.mark.turn
@pytest.mark.parametrize("point", POINTS)
def test_an_epoch_that_fails_at_a_point_is_published_once(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, published: list[tuple[int, int]], point: str
) -> None:
    source, out = make_topic(2, "in"), make_topic(2, "out")
    feed(kafka, source, 30)
    failed: list[str] = []

    def fail_once() -> None:
        if not failed:
            failed.append(point)
            raise EpochFailed(f"injected at {point}")

    with faults.acting(point, fail_once, epoch=0):
        run_job(job(source, out, plain), name)
    assert failed == [point]
    assert values(kafka, out) == Counter(str(number).encode() for number in range(30))
    eventually(lambda: not has_open_transaction(kafka, out), "no transaction is open")
    markers_before_restart = point in ("lane-committed", "epoch-committed", "epoch-done")
    epoch, size = published[-1]
    assert epoch == 0
    assert (size == 0) is markers_before_restart, "rows of a published epoch are not kept"
    replays = [event for event in run_job.events_of("epoch") if event["replay"]]
    assert sum(event["skipped_lanes"] for event in replays) == markers_before_restart


def test_a_marker_that_is_committed_before_its_rows_would_lose_them(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: the checks of the previous test see what it would break."""
    source, out = make_topic(2, "in"), make_topic(2, "out")
    feed(kafka, source, 30)
    failed: list[int] = []
    commit = SpooledLane._commit

    def marker_first(lanes: SpooledLane, lane: Lane, producer: JvmProducer, rows: LaneRows, log_end: int) -> LaneReport:
        with monkeypatch.context() as without_rows:
            without_rows.setattr(JvmProducer, "send", lambda _producer, _rows, **_: None)
            report = commit(lanes, lane, producer, rows, log_end)
        if not failed:
            failed.append(lane.identity.epoch)
            raise EpochFailed("injected")
        producer.begin()
        producer.send(rows)
        return report

    monkeypatch.setattr(SpooledLane, "_commit", marker_first)
    run_job(job(source, out, plain), name)
    assert failed == [0]
    assert values(kafka, out) == Counter()


def test_rows_beyond_the_memory_go_to_disk(
    kafka: KafkaSettings,
    spark: SparkSession,
    run_job: Any,
    name: str,
    make_topic: MakeTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    descriptors = Path(f"/proc/{jvm_of(spark).java.lang.ProcessHandle.current().pid()}/fd")
    spilled: list[int] = []

    def measure_files() -> None:
        total = 0
        for file in descriptors.iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed in the meantime
                total += file.stat().st_size if str(folder) in str(file.readlink()) else 0
        spilled.append(total)

    source, out = make_topic(2, "in"), make_topic(2, "out")
    feed(kafka, source, 2_000)
    padded = F.concat(F.col("value").cast("string"), F.lit("-"), F.repeat(F.lit("x"), 500))
    add_memory = jvm_of(spark).clonos.SpooledQuery.addMemory
    taken = add_memory(0)
    add_memory(-taken)
    try:
        with faults.acting("lane-begun", measure_files):
            run_job(job(source, out, lambda frame: frame.select(padded.alias("value"))), name)
        assert add_memory(0) == 0, "all memory is returned"
    finally:
        add_memory(taken)
    assert spilled[0] > 500_000
    assert not list(folder.iterdir()), "no crash can leave a file behind"
    numbers = Counter(int((value or b"").split(b"-")[0]) for value in values(kafka, out).elements())
    assert numbers == Counter(range(2_000))


def test_no_transaction_is_open_while_rows_are_computed(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    source, out = make_topic(2, "in"), make_topic(2, "out")
    feed(kafka, source, 10)
    computing, release = tmp_path / "computing", tmp_path / "release"

    @F.udf("string")
    def wait(value):  # type: ignore[no-untyped-def]
        if value == b"9":
            computing.touch()
            deadline = Deadline(60)
            while not release.exists() and not deadline.passed():
                time.sleep(0.01)
        return value.decode()

    define = job(source, out, lambda frame: frame.select(wait("value").alias("value")))
    runner = threading.Thread(target=run_job, args=(define, name))
    runner.start()
    try:
        eventually(computing.exists, "the last row is computed", timeout_s=60)
        # The other task has ended.
        assert not has_open_transaction(kafka, out)
        assert read_committed(kafka, out) == []
    finally:
        release.touch()
        runner.join()
    assert values(kafka, out) == Counter(str(number).encode() for number in range(10))


def test_a_late_task_of_a_failed_attempt_publishes_nothing(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """One task fails while another one of the same attempt still computes; it ends after the replay was published."""
    source, out = make_topic(2, "in"), make_topic(2, "out")
    feed(kafka, source, 10)
    first, late, release = tmp_path / "first", tmp_path / "late", tmp_path / "release"

    @F.udf("string")
    def work(value):  # type: ignore[no-untyped-def]
        if value == b"0" and not first.exists():
            deadline = Deadline(60)
            while not late.exists() and not deadline.passed():
                time.sleep(0.01)
            first.touch()
            os.kill(os.getpid(), signal.SIGKILL)  # a lost worker: the epoch is replayed
        if value == b"1" and not late.exists():
            late.touch()
            deadline = Deadline(60)
            while not release.exists() and not deadline.passed():
                time.sleep(0.01)
        return value.decode()

    def release_after_replay() -> None:
        eventually(lambda: read_committed(kafka, out), "the replay is published", timeout_s=60)
        release.touch()

    releaser = threading.Thread(target=release_after_replay)
    releaser.start()
    run_job(job(source, out, lambda frame: frame.select(work("value").alias("value"))), name)
    releaser.join(60)
    assert first.exists()
    assert values(kafka, out) == Counter(str(number).encode() for number in range(10))


def test_the_last_failed_attempt_leaves_no_open_transaction(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    source, out = make_topic(2, "in"), make_topic(2, "out")
    feed(kafka, source, 10)

    def fail() -> None:
        raise EpochFailed("injected")

    with faults.acting("lane-produced", fail), pytest.raises(RestartsExhausted):
        run_job(job(source, out, plain), name, restart_policy={"attempts": 0})
    eventually(lambda: not has_open_transaction(kafka, out), "no transaction is open")
    assert read_committed(kafka, out) == []


def test_a_driver_that_was_superseded_sends_no_row(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its producer is newer than the successor's claim: only the tail of the lane, which it reads first, shows that."""
    source, out = make_topic(1, "in"), make_topic(1, "out")
    feed(kafka, source, 10)

    def publish(lanes: SpooledLane, lane: Lane, rows: LaneRows) -> LaneReport:
        claim(kafka, name)
        lanes.discard()
        return published(lanes, lane, rows)

    published = SpooledLane._publish
    monkeypatch.setattr(SpooledLane, "_publish", publish)
    with pytest.raises(Superseded):
        run_job(job(source, out, plain), name)
    reader = LogReader(kafka, out)
    try:
        assert reader.bounds(0) == (0, 0), "not even rows of an aborted transaction are in the output"
    finally:
        reader.close()


@pytest.mark.turn
@pytest.mark.parametrize("compared", [True, False], ids=["compared", "mutant"])
def test_a_claim_that_the_read_of_the_tail_missed_is_detected_by_the_markers_offset(
    kafka: KafkaSettings,
    run_job: Any,
    name: str,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    compared: bool,
) -> None:
    """The driver reads the tail from a leader that Kafka has replaced, and its init is newer than the claim."""
    source, out = make_topic(2, "in"), make_topic(2, "out")
    feed(kafka, source, 10)
    read, commit = spooled.require_owner, JvmProducer.commit

    def stale(epoch: SinkEpoch, lane: SinkLane, *, reread: bool = False) -> Tail | None:
        return read(epoch, lane, reread=True) if reread else None

    def publish(lanes: SpooledLane, lane: Lane, rows: LaneRows) -> LaneReport:
        claim(kafka, name)
        lanes.discard()
        return published(lanes, lane, rows)

    published = SpooledLane._publish
    monkeypatch.setattr(SpooledLane, "_publish", publish)
    monkeypatch.setattr(spooled, "require_owner", stale)
    if not compared:
        monkeypatch.setattr(JvmProducer, "commit", lambda producer, _log_end, _topic_ids: commit(producer))
    with pytest.raises(Superseded):
        run_job(job(source, out, plain), name)
    assert sum(values(kafka, out).values()) == (0 if compared else 10)
    eventually(lambda: not has_open_transaction(kafka, out), "no transaction is open")


@pytest.mark.turn
@pytest.mark.parametrize(("version", "kept"), [(2, False), (1, False), (1, True)], ids=["kip-890", "older", "mutant"])
def test_a_delayed_end_of_an_older_transaction_changes_nothing(
    run_on: Callable[[KafkaSettings], Any],
    spark: SparkSession,
    tmp_path: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    kept: bool,
) -> None:
    """With KIP-890, the producer that an epoch leaves to the next one has a newer epoch than the delayed request.

    Without it each epoch needs a new producer. The mutant keeps the producer: the test sees what it would break.
    """
    if kept:
        monkeypatch.setattr("clonos_sinks.kafka.spooled.EPOCH_PER_TRANSACTION", version)
    with SeveredCluster(tmp_path / "kafka", DelayingLink) as cluster:
        link, kafka = cluster.link, cluster.kafka
        assert isinstance(link, DelayingLink)
        if version < 2:
            downgrade_transactions(spark, kafka, version)
        admin = AdminClient(client_config(kafka))
        for created in admin.create_topics([NewTopic(topic, 1) for topic in ("in", "out")]).values():
            created.result(60)
        feed(kafka, "in", 10, partitions=1)
        far = KafkaSettings(bootstrap_servers=cluster.far["CLONOS_KAFKA__BOOTSTRAP_SERVERS"])
        seen_early: list[int] = []
        codes: list[int] = []

        def deliver() -> None:
            assert link.held.is_set()
            eventually(lambda: has_open_transaction(kafka, "out"), "records of the next epoch have arrived")
            codes.append(link.deliver())
            seen_early.append(values(kafka, "out").total())

        def define(ctx: JobContext) -> None:
            ctx.sink(ctx.source("in", max_per_epoch=5).select("value"), topic="out", name="out")

        hold = faults.acting("lane-marked", lambda: link.hold(lane_id(name, "out", 0)), epoch=0)
        with hold, faults.acting("lane-produced", deliver, epoch=1):
            run_on(far)(define, name)
        if kept:
            assert seen_early == [10], "the delayed request ended the transaction of the next epoch"
            return
        assert seen_early == [5]
        assert codes == [KafkaError.PRODUCER_FENCED]
        assert values(kafka, "out") == Counter(str(number).encode() for number in range(10))


def test_truncation_does_not_fence_the_kept_producer(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Truncation renews the lane's claim with the lane's transactional id."""
    monkeypatch.setattr(epochs, "RETAINED_EPOCHS", 2)
    source, out = make_topic(1, "in"), make_topic(1, "out")
    feed(kafka, source, 12, partitions=1)

    def define(ctx: JobContext) -> None:
        ctx.sink(ctx.source(source, max_per_epoch=2).select("value"), topic=out, name="out")

    run_job(define, name)
    assert run_job.events_of("truncated")
    assert run_job.events_of("restart") == []
    assert values(kafka, out) == Counter(str(number).encode() for number in range(12))


def test_epochs_without_output_open_one_producer(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[JvmProducer] = []
    init = JvmProducer.init

    def noted(producer: JvmProducer) -> None:
        opened.append(producer)
        init(producer)

    monkeypatch.setattr(JvmProducer, "init", noted)
    source, out = make_topic(1, "in"), make_topic(1, "out")
    feed(kafka, source, 8, partitions=1)

    def define(ctx: JobContext) -> None:
        rows = ctx.source(source, max_per_epoch=2).where("cast(cast(value as string) as int) >= 6")
        ctx.sink(rows.select("value"), topic=out, name="out")

    run_job(define, name)
    assert len(run_job.events_of("epoch")) >= 4
    assert len(opened) == 1
    assert values(kafka, out) == Counter([b"6", b"7"])


@pytest.mark.turn
def test_a_sink_topic_deleted_between_epochs_is_not_created_again(
    run_on: Callable[[KafkaSettings], Any], tmp_path: Path, name: str
) -> None:
    properties = {"auto.create.topics.enable": "true"}
    with EmbeddedKafka(tmp_path / "kafka", jars=ensure_jars(Settings()), properties=properties) as cluster:
        kafka = cluster.kafka
        admin = AdminClient(client_config(kafka))
        for created in admin.create_topics([NewTopic(topic, 1) for topic in ("in", "out")]).values():
            created.result(60)
        feed(kafka, "in", 4, partitions=1)

        def delete() -> None:
            admin.delete_topics(["out"])["out"].result(60)
            eventually(lambda: "out" not in admin.list_topics(timeout=10).topics, "the topic is deleted")

        def define(ctx: JobContext) -> None:
            ctx.sink(ctx.source("in", max_per_epoch=2).select("value"), topic="out", name="out")

        with faults.acting("epoch-done", delete, epoch=0), pytest.raises(SinkTopicDeleted):
            run_on(kafka)(define, name)
        assert "out" not in admin.list_topics(timeout=10).topics
