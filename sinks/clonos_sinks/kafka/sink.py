"""`KafkaSink`: the sink that a job names. It runs the lanes of an epoch as Spark tasks."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from pyspark.sql import DataFrame, SparkSession

from clonos.errors import (
    BrokerLimit,
    ClonosError,
    EpochFailed,
    RecordRejected,
    SpecError,
    TopicMissing,
)
from clonos.extend.lanes import MultisetDigest, publish_rest, run_lanes
from clonos.extend.sink import DeliveryMode, LaneReport, OutputMode, SinkEpoch, SinkLane
from clonos.kafka import client_config, produce, unanswered
from clonos.log.records import InputSlice, Marker, whole_epoch
from clonos.log.transaction import DEFAULT_TIMEOUT_MS, MAX_RECORD_BYTES
from clonos.settings import KafkaSettings
from clonos_sinks.kafka.dead_letters import DeadLetters
from clonos_sinks.kafka.lane import Lane, audit, publish
from clonos_sinks.kafka.rows import Row, check_schema, identity, rows_of
from clonos_sinks.kafka.targets import Limits, Targets, read_limits

if TYPE_CHECKING:
    from clonos.spark.spooling import DriverLane

_OPTIONS: Final = {"compression.type": "none|gzip|snappy|lz4|zstd", "linger.ms": "[0-9]{1,4}"}
KafkaPass = Literal["publish", "audit", "deliver"]


class KafkaSink:
    """Publishes a DataFrame's rows to Kafka, each epoch exactly once.

    Args:
        name: Stable name of the sink and of its query.
        topic: Topic of the rows without a ``topic`` column value.
        output_mode: Spark's output mode.
        delivery: ``exactly-once``: one transaction (KIP-98) for each lane. ``atomic-epoch``: one transaction for the
            whole epoch, which becomes visible at once. ``at-least-once``: no transactions and no markers.
        transaction_timeout_ms: ``transaction.timeout.ms`` of the lanes. It doubles with each failed attempt at an
            epoch, up to the broker's limit.
        producer: Options of Kafka's producer: ``compression.type`` and ``linger.ms``. The others are part of the
            protocol, or follow from the topics' limits.

    Raises:
        SpecError: `producer` has another option.

    Example::

        ctx.sink(totals, topic="totals", delivery="atomic-epoch", producer={"compression.type": "lz4"})
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
        producer: Mapping[str, str] | None = None,
    ) -> None:
        self.producer = _checked(producer or {})
        self.name = name
        self.topic = topic
        self.output_mode = output_mode
        self.delivery = delivery
        self.transaction_timeout_ms = transaction_timeout_ms
        self._limit_ms = transaction_timeout_ms
        self._limits = Limits()
        self._spools = False

    def check(self, kafka: KafkaSettings) -> None:
        """Fail at start if the topic does not exist or the broker does not allow the transaction timeout.

        Raises:
            TopicMissing: The default topic does not exist.
            BrokerLimit: The transaction timeout is above the broker's maximum.
            BrokerUnavailable: Kafka did not answer.
            KafkaAccessDenied: Kafka refused the client.
        """
        admin = AdminClient(client_config(kafka))
        try:
            metadata = admin.list_topics(timeout=15)
            if self.topic is not None:
                topic = metadata.topics.get(self.topic)
                if topic is None or topic.error is not None:
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
                f"The sink's transaction timeout is {self.transaction_timeout_ms} ms, the broker allows {limit} ms.",
                kept="nothing was started.",
                hint="lower transaction_timeout_ms or raise the broker's transaction.max.timeout.ms.",
            )

    def check_frame(self, frame: DataFrame) -> None:
        """Refuse columns that cannot become Kafka records."""
        check_schema(frame.schema, default_topic=self.topic)

    def lanes(self, slices: tuple[InputSlice, ...]) -> tuple[InputSlice, ...]:
        """One lane for each partition of the epoch; with ``atomic-epoch`` one lane for all partitions."""
        if self._spools:
            return whole_epoch(slices, "spool")
        return whole_epoch(slices) if self.delivery == "atomic-epoch" else slices

    def driver_lane(self, spark: SparkSession, kafka: KafkaSettings) -> DriverLane:
        """The lane of one start of the query on a local master: from now on an epoch has this lane alone."""
        # Not at the top: the control plane and Python workers import this module, and have no Java.
        from clonos_sinks.kafka.spooled import SpooledLane

        self._spools = True
        return SpooledLane(
            spark,
            kafka,
            self._limits,
            transactional=self.delivery != "at-least-once",
            first_timeout_ms=self.transaction_timeout_ms,
            longest_timeout_ms=self._limit_ms,
            options=self.producer,
        )

    def write(self, frame: DataFrame, epoch: SinkEpoch) -> list[LaneReport]:
        """Publish the lanes of `epoch` that are not published yet; returns one report for each lane."""
        if self.delivery == "atomic-epoch" and epoch.lanes:
            # Not coalesce, which would change the parallelism and the indices of the tasks before it. The rows of each
            # earlier task arrive in order.
            frame = frame.repartition(1)
        # An epoch that exceeded its transaction timeout gets more time, up to the broker's limit.
        timeout_ms = min(self._limit_ms, self.transaction_timeout_ms * 2**epoch.attempt)

        def run(rows: DataFrame, mode: KafkaPass) -> list[LaneReport]:
            return run_lanes(
                rows, epoch, functools.partial(_write_lane, self.topic, timeout_ms, self._limits, self.producer, mode)
            )

        if self.delivery == "at-least-once" and not epoch.committed:
            return run(frame, "deliver")
        return publish_rest(frame, epoch, {lane.number for lane in epoch.lanes if _published(epoch, lane)}, run)


def _checked(options: Mapping[str, str]) -> dict[str, str]:
    for name, value in options.items():
        values = _OPTIONS.get(name)
        if values is None:
            raise SpecError(f"The Kafka sink has no producer option {name!r}.", hint=f"use {' or '.join(_OPTIONS)}.")
        if not re.fullmatch(values, str(value)):
            raise SpecError(f"The producer option {name}={value!r} is invalid.", hint=f"it must match {values}.")
    return {name: str(value) for name, value in options.items()}


def _published(epoch: SinkEpoch, lane: SinkLane) -> Marker | None:
    """The lane's marker, if it is of this epoch."""
    return lane.marker if lane.marker is not None and lane.marker.epoch == epoch.identity.epoch else None


def _write_lane(
    topic: str | None,
    timeout_ms: int,
    limits: Limits,
    options: Mapping[str, str],
    mode: KafkaPass,
    epoch: SinkEpoch,
    assigned: SinkLane,
    batches: Iterator[pa.RecordBatch],
) -> LaneReport:
    """Run one pass over one lane, in its task."""
    lane = Lane(epoch, assigned, timeout_ms, limits, options)
    letters = DeadLetters(lane.identity.job, lane.identity.epoch)
    rows = (row for batch in letters.ordinary(batches) for row in rows_of(batch, topic))
    try:
        report = _run_pass(lane, rows, mode)
    except KafkaException as error:
        raise EpochFailed(f"{lane}: {error.args[0].str()}.") from error
    return msgspec.structs.replace(report, dead_letters=letters.count) if report.outcome == "published" else report


def _run_pass(lane: Lane, rows: Iterator[Row], mode: KafkaPass) -> LaneReport:
    marker = _published(lane.epoch, lane.assigned)
    if mode == "deliver":
        return deliver(lane, rows)
    if mode == "audit":
        if marker is not None:
            return audit(lane, None, rows, marker)
        digest = MultisetDigest.of(map(identity, rows))
        return LaneReport(lane.number, "skipped" if digest.records else "empty", digest.records, digest.value())
    if marker is not None:
        return LaneReport(lane.number, "skipped", marker.records, marker.digest)
    return publish(lane, rows, eager=lane.assigned.input_slice.kind in ("range", "epoch"))


def deliver(lane: Lane, rows: Iterator[Row]) -> LaneReport:
    """Publish the rows of a lane at least once: without a transaction and without a marker."""
    producer = Producer(
        client_config(
            lane.epoch.kafka,
            enable_idempotence=True,
            linger_ms=5,
            partitioner="murmur2_random",
            batch_size=lane.limits.batch,
            message_max_bytes=MAX_RECORD_BYTES,
            **lane.options,
        )
    )
    targets = Targets(lane.epoch.kafka, producer, lane.limits)
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
        produce(producer, row.topic, row.value, row.key, on_delivery=delivered, **more)
        digest.add(identity(row))
    left = producer.flush(60)
    if failures or left:
        reason = failures[0].str() if failures else f"{left} records not sent"
        too_large = any(error.code() == KafkaError.MSG_SIZE_TOO_LARGE for error in failures)
        kind: type[ClonosError] = RecordRejected if too_large else EpochFailed
        raise kind(f"{lane}: {reason}.")
    return LaneReport(lane.number, "published" if digest.records else "empty", digest.records, digest.value())
