"""What a job names as its Kafka sink, and how an epoch's lanes are run on Spark."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from pyspark.sql import DataFrame

from clonos.errors import (
    BrokerLimit,
    ClonosError,
    EpochFailed,
    RecordRefused,
    TopicMissing,
)
from clonos.kafka import client_config, unanswered
from clonos.lanes import MultisetDigest, publish_rest, run_lanes
from clonos.log.records import Held, Marker, whole_epoch
from clonos.log.transaction import DEFAULT_TIMEOUT_MS, MAX_RECORD_BYTES
from clonos.settings import KafkaSettings
from clonos.sinks import DeliveryMode, LaneReport, OutputMode, SinkEpoch
from clonos_sinks.kafka.dead_letters import DeadLetters
from clonos_sinks.kafka.lane import Lane, audit, publish
from clonos_sinks.kafka.rows import Row, check_schema, identity, rows_of
from clonos_sinks.kafka.targets import Limits, Targets, read_limits

KafkaPass = Literal["publish", "audit", "deliver"]


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
            raise unanswered("Kafka did not answer", error.args[0]) from error
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
        """Publish what is not yet published of `epoch`."""
        if self.delivery == "atomic-epoch" and epoch.held:
            # Not coalesce: the tasks before it keep their parallelism, and their indices. What one of them
            # computed arrives in its order.
            frame = frame.repartition(1)
        # An epoch that outlived its transaction gets more time, up to what the broker allows.
        timeout_ms = min(self._limit_ms, self.transaction_timeout_ms * 2**epoch.attempt)

        def run(rows: DataFrame, what: KafkaPass) -> list[LaneReport]:
            writer = functools.partial(_write_lane, self.name, self.topic, timeout_ms, self._limits, what)
            return run_lanes(rows, epoch, writer)

        if self.delivery == "at-least-once" and not epoch.ended:
            return run(frame, "deliver")
        published = {lane for lane, marker in epoch.markers.items() if marker.epoch == epoch.epoch}
        return publish_rest(frame, epoch, published, run)


def _write_lane(
    sink: str,
    topic: str | None,
    timeout_ms: int,
    limits: Limits,
    what: KafkaPass,
    epoch: SinkEpoch,
    number: int,
    batches: Iterator[pa.RecordBatch],
) -> LaneReport:
    """One task: run the lane that this partition is, and report."""
    lane = Lane(
        epoch.kafka,
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
        epoch.known[number] if epoch.known else -1,
    )
    letters = DeadLetters(epoch.job, epoch.epoch)
    rows = (row for batch in letters.ordinary(batches) for row in rows_of(batch, topic))
    try:
        report = _lane(lane, rows, epoch.markers.get(number), what)
    except KafkaException as error:
        raise EpochFailed(f"{lane.query} lane {number}: {error.args[0].str()}.") from error
    return msgspec.structs.replace(report, dead_letters=letters.count) if report.outcome == "published" else report


def _lane(lane: Lane, rows: Iterator[Row], marker: Marker | None, what: KafkaPass) -> LaneReport:
    mine = marker if marker is not None and marker.epoch == lane.epoch else None
    if what == "deliver":
        return deliver(lane, rows)
    if what == "audit":
        if mine is not None:
            return audit(lane, None, rows, mine)
        digest = MultisetDigest()
        for row in rows:
            digest.add(identity(row))
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
        digest.add(identity(row))
    left = producer.flush(60)
    if failures or left:
        why = failures[0].str() if failures else f"{left} records not sent"
        too_large = any(error.code() == KafkaError.MSG_SIZE_TOO_LARGE for error in failures)
        kind: type[ClonosError] = RecordRefused if too_large else EpochFailed
        raise kind(f"{lane.query} lane {lane.lane}: {why}.")
    return LaneReport(lane.lane, "published" if digest.records else "empty", digest.records, digest.value())
