"""Publishes rows with the Kafka sink as the tasks of an epoch do, without a job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import DataFrame, SparkSession

from clonos.extend.sink import LaneReport, SinkEpoch, SinkLane
from clonos.log.claiming import Ownership
from clonos.log.reading import SINGLE_RECORD_TRANSACTION
from clonos.log.records import EpochIdentity, InputSlice
from clonos.testing.epoch_writes import EpochWrites
from clonos_sinks.kafka import KafkaSink

SCHEMA = (
    "topic string, key binary, value binary, partition int, headers array<struct<key string, value binary>>, "
    "timestamp timestamp"
)
INPUT = InputSlice("range", "in", 0, 0, 3)


class Row(NamedTuple):
    """One record to publish. A field that is None has Kafka's default."""

    topic: str
    key: bytes | None = b"k"
    value: bytes | None = b"v"
    partition: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] | None = None
    timestamp: datetime | None = None

    @property
    def batch_bytes(self) -> int:
        """The size of a batch with this record alone (Kafka's record format, version 2)."""
        headers = self.headers or ()
        body = 3 + _field(self.key) + _field(self.value) + _varint(len(headers))
        body += sum(_field(name.encode()) + _field(value) for name, value in headers)
        return 61 + _varint(body) + body


def _field(data: bytes | None) -> int:
    return 1 if data is None else _varint(len(data)) + len(data)


def _varint(number: int) -> int:
    """The number of bytes of a non-negative number in zig-zag encoding, with seven bits in each byte."""
    return max(1, ((number << 1).bit_length() + 6) // 7)


def frame_of(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    """A DataFrame with these rows, in one partition."""
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, 1), SCHEMA)


def epoch_of(
    own: Ownership,
    epoch: int = 0,
    *,
    input_slice: InputSlice = INPUT,
    replay: bool = True,
    tail_offset: int = -1,
    committed: bool = False,
) -> SinkEpoch:
    """An epoch with one lane, of a sink with the name ``out``; a replay by default."""
    (partition,) = own.ensure_lanes("out", 1)
    marker = own.markers.get(partition) if replay else None
    if marker is not None and marker.owner.lineage != own.owner.lineage:
        marker = None
    identity = EpochIdentity(own.job, own.topic, "out", epoch, own.owner, replay)
    log_end = own.tail_offsets[partition] + SINGLE_RECORD_TRANSACTION
    lane = SinkLane(0, 0, input_slice, partition, tail_offset=tail_offset, log_end=log_end, marker=marker)
    return SinkEpoch(identity, own.kafka, (lane,), committed)


def publish(
    spark: SparkSession, own: Ownership, rows: Sequence[Row], epoch: SinkEpoch | int = 0, **sink: Any
) -> LaneReport:
    """Publish the rows as one lane; `sink` has arguments of `KafkaSink`."""
    target = KafkaSink("out", **sink)
    target.check(own.kafka)
    return publish_with(spark, writes_of(spark, target, own), own, rows, epoch)


def writes_of(spark: SparkSession, sink: KafkaSink, own: Ownership) -> EpochWrites:
    """Writes epochs whose lanes the tasks publish, as on a cluster."""
    return EpochWrites(spark, sink, own, (INPUT,))


def publish_with(
    spark: SparkSession, writes: EpochWrites, own: Ownership, rows: Sequence[Row], epoch: SinkEpoch | int = 0
) -> LaneReport:
    """Publish the rows as one lane of a sink that was checked before."""
    lanes = epoch if isinstance(epoch, SinkEpoch) else epoch_of(own, epoch)
    (report,) = writes.write(frame_of(spark, rows), lanes)
    if report.marker_offset >= 0:
        own.tail_offsets[lanes.lanes[0].log_partition] = report.marker_offset
    return report


def lanes_of_partitions(sink: KafkaSink, _spark: SparkSession) -> bool:
    """As `KafkaSink.has_one_lane` on a cluster."""
    return sink.delivery == "atomic-epoch"


def with_tail(epoch: SinkEpoch, tail_offset: int) -> SinkEpoch:
    """The epoch, with the known offset of the lane's newest claim or marker; -1: it is not known."""
    (lane,) = epoch.lanes
    log_end = tail_offset + SINGLE_RECORD_TRANSACTION if tail_offset >= 0 else -1
    lane = msgspec.structs.replace(lane, tail_offset=tail_offset, log_end=log_end)
    return msgspec.structs.replace(epoch, lanes=(lane,))
