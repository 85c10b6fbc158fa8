"""What a job names as its Kafka sink, and how an epoch's lanes are run on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from pyspark import StorageLevel, TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from clonos.carried import carry, uncarry
from clonos.errors import (
    BrokerLimit,
    BrokerUnavailable,
    ClonosError,
    EpochFailed,
    RecordRefused,
    ReplayDivergence,
    TopicMissing,
)
from clonos.kafka import client_config
from clonos.log.records import Held, Marker, whole_epoch
from clonos.log.transaction import DEFAULT_TIMEOUT_MS, MAX_RECORD_BYTES
from clonos.settings import KafkaSettings
from clonos.sinks import DeliveryMode, LaneReport, OutputMode, SinkEpoch
from clonos_sinks.kafka.dead_letters import DeadLetters
from clonos_sinks.kafka.digest import MultisetDigest
from clonos_sinks.kafka.lane import Lane, audit, publish
from clonos_sinks.kafka.rows import Row, check_schema, rows_of
from clonos_sinks.kafka.targets import Limits, Targets, read_limits

# Not as text, which Spark would parse in each epoch.
_REPORT_SCHEMA = StructType([StructField("report", BinaryType()), StructField("error", StringType())])
_REPORT_ARROW = pa.schema([("report", pa.binary()), ("error", pa.string())])
Pass = Literal["publish", "audit", "deliver"]


class KafkaSink:
    """Publishes a DataFrame's rows to Kafka, each epoch exactly once.

    Args:
        name: Stable name of the sink; also that of its query.
        topic: Where rows without a ``topic`` column value go.
        output_mode: Spark's output mode.
        delivery: ``exactly-once``: one transaction for each lane; ``atomic-epoch``: one for the whole epoch, which
            becomes visible at once; ``at-least-once``: no transactions and no markers.
        transaction_timeout_ms: ``transaction.timeout.ms`` of the lanes.
    """

    publishes_dead_letters = True

    def __init__(
        self,
        name: str,
        *,
        topic: str | None = None,
        output_mode: OutputMode = "append",
        delivery: DeliveryMode = "exactly-once",
        transaction_timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> None:
        self.name = name
        self.topic = topic
        self.output_mode = output_mode
        self.delivery = delivery
        self.transaction_timeout_ms = transaction_timeout_ms
        self._limit_ms = transaction_timeout_ms
        self._limits = Limits()

    def check(self, kafka: KafkaSettings) -> None:
        """Fail closed at start: the topic exists, the broker allows the transaction timeout."""
        admin = AdminClient(client_config(kafka))
        try:
            metadata = admin.list_topics(timeout=15)
            if self.topic is not None:
                known = metadata.topics.get(self.topic)
                if known is None or known.error is not None:
                    raise TopicMissing(
                        f"The sink topic {self.topic!r} does not exist.",
                        kept="nothing was started.",
                        hint="create it with as many partitions as its readers need.",
                    )
            broker = ConfigResource(ResourceType.BROKER, str(next(iter(metadata.brokers))))
            config = admin.describe_configs([broker])[broker].result(15)
            limit = int(config["transaction.max.timeout.ms"].value)
            self._limits = read_limits(admin, config, self.topic)
        except KafkaException as error:
            raise BrokerUnavailable(f"Kafka did not answer: {error.args[0].str()}.") from error
        self._limit_ms = limit
        if self.transaction_timeout_ms > limit:
            raise BrokerLimit(
                f"The sink asks for transactions of up to {self.transaction_timeout_ms} ms, the broker allows {limit}.",
                kept="nothing was started.",
                hint="lower transaction_timeout_ms or raise the broker's transaction.max.timeout.ms.",
            )

    def check_frame(self, frame: DataFrame) -> None:
        """Refuse columns that cannot become Kafka records."""
        check_schema(frame.schema, default_topic=self.topic)

    def lanes(self, held: tuple[Held, ...]) -> tuple[Held, ...]:
        """One lane for each partition; in ``atomic-epoch`` one for all."""
        return whole_epoch(held) if self.delivery == "atomic-epoch" else held

    def write(self, frame: DataFrame, epoch: SinkEpoch) -> list[LaneReport]:
        """Publish what is not yet published of `epoch`.

        Where an earlier attempt published some lanes and not others, the published ones are audited before
        any other is published, on rows computed once: a contradiction must not get out.
        """
        if self.delivery == "atomic-epoch" and epoch.held:
            # Not coalesce: the tasks before it keep their parallelism, and their indices. What one of them
            # computed arrives in its order.
            frame = frame.repartition(1)
        if epoch.ended:
            return self._run(frame, epoch, "audit")
        if self.delivery == "at-least-once":
            return self._run(frame, epoch, "deliver")
        published = {lane for lane, marker in epoch.markers.items() if marker.epoch == epoch.epoch}
        if not published:
            return self._run(frame, epoch, "publish")
        kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            audited = self._run(kept, epoch, "audit")
            wrong = [report.lane for report in audited if report.diverged]
            if wrong:
                raise ReplayDivergence(
                    f"Epoch {epoch.epoch} of {epoch.query}: its replay differs from what lanes {wrong} published.",
                    kept="the lanes not yet published were not published.",
                )
            rest = self._run(kept, epoch, "publish")
        finally:
            kept.unpersist()
        return [first if first.lane in published else then for first, then in zip(audited, rest, strict=True)]

    def _run(self, frame: DataFrame, epoch: SinkEpoch, what: Pass) -> list[LaneReport]:
        rows = frame.mapInArrow(self._partition_writer(epoch, what), _REPORT_SCHEMA).collect()
        reports = []
        for row in rows:
            if row.error is not None:
                raise uncarry(row.error) or EpochFailed(row.error)
            reports.append(msgspec.msgpack.decode(row.report, type=LaneReport))
        if len(reports) != len(epoch.held):
            raise EpochFailed(f"{len(reports)} of {len(epoch.held)} lanes of epoch {epoch.epoch} reported.")
        return sorted(reports, key=lambda report: report.lane)

    def _partition_writer(
        self, epoch: SinkEpoch, what: Pass
    ) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        name, topic, limits = self.name, self.topic, self._limits
        # An epoch that outlived its transaction gets more time, up to what the broker allows.
        timeout_ms = min(self._limit_ms, self.transaction_timeout_ms * 2**epoch.attempt)
        # Settings hold a password: Python workers get them by environment, not inside the plan.
        shipped = msgspec.structs.replace(epoch, kafka=KafkaSettings())

        def write_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield _write_partition(batches, shipped, name, topic, timeout_ms, what, limits)

        return write_partition


def _write_partition(
    batches: Iterator[pa.RecordBatch],
    epoch: SinkEpoch,
    sink: str,
    topic: str | None,
    timeout_ms: int,
    what: Pass,
    limits: Limits,
) -> pa.RecordBatch:
    """One task: run the lane that this partition is, and report. A typed error is reported, not raised."""
    from clonos.causal.scope import worker_kafka

    context = TaskContext.get()
    if context is None:
        raise AssertionError("a lane is written by a Spark task")
    number = epoch.lanes[context.partitionId()]
    lane = Lane(
        worker_kafka(),
        epoch.job,
        sink,
        epoch.topic,
        epoch.owner,
        epoch.query,
        epoch.epoch,
        number,
        epoch.held[number],
        epoch.partitions[number],
        timeout_ms,
        epoch.replay,
        limits,
    )
    letters = DeadLetters(epoch.job, epoch.epoch)
    rows = (row for batch in letters.ordinary(batches) for row in rows_of(batch, topic))
    try:
        report = _lane(lane, rows, epoch.markers.get(number), what)
    except ClonosError as error:
        return _report(None, str(carry(error)))
    except KafkaException as error:
        return _report(None, str(carry(EpochFailed(f"{lane.query} lane {number}: {error.args[0].str()}."))))
    if report.outcome == "published":
        report = msgspec.structs.replace(report, dead_letters=letters.count)
    return _report(msgspec.msgpack.encode(report), None)


def _lane(lane: Lane, rows: Iterator[Row], marker: Marker | None, what: Pass) -> LaneReport:
    mine = marker if marker is not None and marker.epoch == lane.epoch else None
    if what == "deliver":
        return deliver(lane, rows)
    if what == "audit":
        if mine is not None:
            return audit(lane, None, rows, mine)
        digest = MultisetDigest()
        for row in rows:
            digest.add(row)
        return LaneReport(lane.lane, "skipped" if digest.records else "empty", digest.records, digest.value())
    if mine is not None:
        return LaneReport(lane.lane, "skipped", mine.records, mine.digest)
    return publish(lane, rows, eager=lane.held.kind in ("range", "epoch"))


def deliver(lane: Lane, rows: Iterator[Row]) -> LaneReport:
    """At-least-once: produce and flush, without transaction and marker.

    Raises:
        EpochFailed: A record was not acknowledged.
    """
    producer = Producer(
        client_config(
            lane.kafka,
            enable_idempotence=True,
            linger_ms=5,
            partitioner="murmur2_random",
            batch_size=lane.limits.batch,
            message_max_bytes=MAX_RECORD_BYTES,
        )
    )
    targets = Targets(lane.kafka, producer, lane.limits)
    digest = MultisetDigest()
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Any) -> None:
        if error is not None:
            failures.append(error)

    for row in rows:
        targets.admit(row)
        more: dict[str, Any] = {}
        if row.partition is not None:
            more["partition"] = row.partition
        if row.headers is not None:
            more["headers"] = list(row.headers)
        if row.timestamp is not None:
            more["timestamp"] = row.timestamp
        while True:
            try:
                producer.produce(row.topic, row.value, row.key, on_delivery=delivered, **more)
                break
            except BufferError:
                producer.poll(0.05)
        digest.add(row)
    left = producer.flush(60)
    if failures or left:
        why = failures[0].str() if failures else f"{left} records not sent"
        too_large = any(error.code() == KafkaError.MSG_SIZE_TOO_LARGE for error in failures)
        kind: type[ClonosError] = RecordRefused if too_large else EpochFailed
        raise kind(f"{lane.query} lane {lane.lane}: {why}.")
    return LaneReport(lane.lane, "published" if digest.records else "empty", digest.records, digest.value())


def _report(report: bytes | None, error: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"report": report, "error": error}], schema=_REPORT_ARROW)
