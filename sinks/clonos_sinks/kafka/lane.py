"""One lane of an epoch of the Kafka sink, for both ways in which lanes are published: by the tasks of the epoch
(`clonos_sinks.kafka.partitioned`), or by the driver (`clonos_sinks.kafka.spooled`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from pyspark.sql import SparkSession

from clonos.errors import CheckpointMismatch, CheckpointOutdated
from clonos.extend.lanes import at_point
from clonos.extend.sink import SinkEpoch, SinkLane
from clonos.log.control import lane_id
from clonos.log.records import EpochIdentity, Marker
from clonos.spark.internals import jvm_of
from clonos_sinks.kafka.limits import Limits

_BUFFER_BYTES: Final = 64 * 1024 * 1024
_MAX_RECORD_BYTES: Final = 256 * 1024 * 1024
_REQUEST_MS: Final = 30_000
_BLOCK_MS: Final = 30_000  # longest wait for an init, or for a commit without progress
_SLOW_BYTES_PER_S: Final = 256 * 1024  # of a cluster that throttles its clients
_LINGER_MS: Final = 5
_METADATA_IDLE_MS: Final = 5_000  # Kafka's minimum
EPOCH_PER_TRANSACTION: Final = 2  # the version of Kafka's transactions with KIP-890


class LaneSettings(msgspec.Struct, frozen=True):
    """What the lanes of one sink have in common."""

    topic: str | None  # of rows without one
    timeout_ms: int  # time for a transaction
    longest_timeout_ms: int  # time for a transaction with many bytes, or after a failed attempt: the broker's limit
    limits: Limits = Limits()  # record and request size limits of the cluster
    options: Mapping[str, str] = {}  # the sink's options of Kafka's producer
    transactional: bool = True

    def lanes(self, epoch: SinkEpoch) -> tuple[Lane, ...]:
        """Return the lanes of an epoch, by number. An attempt that failed may have lasted too long."""
        timeout_ms = self.longest_timeout_ms if epoch.attempt else self.timeout_ms
        return tuple(Lane(epoch, assigned, self, timeout_ms) for assigned in epoch.lanes)

    @property
    def buffer_bytes(self) -> int:
        """``buffer.memory`` of a producer, which must hold the largest record."""
        return max(_BUFFER_BYTES, min(self.limits.record, _MAX_RECORD_BYTES))

    def checks(self, spark: SparkSession, connection: Mapping[str, str]) -> Any:
        """Return a Java supplier of each epoch's ``clonos.TopicCheck``.

        Args:
            spark: The session.
            connection: Kafka's options of an admin client, which reads what topics accept.
        """
        jvm = jvm_of(spark)
        return jvm.clonos.TopicCheck.ofEpochs(dict(connection), self.topic, self.limits.largest, self.buffer_bytes)


class Lane(msgspec.Struct, frozen=True):
    """One lane of one epoch."""

    epoch: SinkEpoch
    assigned: SinkLane
    settings: LaneSettings
    timeout_ms: int  # time for a transaction with few bytes, in this attempt

    @property
    def number(self) -> int:
        """The lane's number."""
        return self.assigned.number

    @property
    def identity(self) -> EpochIdentity:
        """Job, query and number of the epoch, and the owner that runs it."""
        return self.epoch.identity

    @property
    def transactional_id(self) -> str:
        """The transactional id of the lane's producers."""
        return lane_id(self.identity.job, self.identity.query, self.number)

    @property
    def patient_bytes(self) -> int:
        """A slow cluster may not take more bytes than that within `timeout_ms`."""
        return self.timeout_ms * _SLOW_BYTES_PER_S // 1000

    def timeout_of(self, size: int) -> int:
        """Return the timeout in ms of a transaction of `size` bytes."""
        return self.timeout_ms if size <= self.patient_bytes else self.settings.longest_timeout_ms

    def __str__(self) -> str:
        """For messages: ``Lane 0 of orders``."""
        return f"Lane {self.number} of {self.identity.query}"

    def at_point(self, name: str) -> None:
        """Trigger the injected faults for this lane at a named point of the protocol, in tests (`clonos.faults`)."""
        at_point(name, self.epoch, self.assigned)

    def marker(self, records: int = 0, digest: bytes = b"") -> Marker:
        """Return the marker that proves that the lane is published, with these records."""
        return Marker(
            owner=self.identity.owner,
            query=self.identity.query,
            epoch=self.identity.epoch,
            lane=self.number,
            input_slice=self.assigned.input_slice,
            records=records,
            digest=digest,
        )

    def published_marker(self, newest: Marker | None) -> Marker | None:
        """Return the marker that proves that this lane of this epoch is published; None if it is not.

        Args:
            newest: The newest marker of the lane's partition of the causal log.

        Raises:
            CheckpointMismatch: The newest marker is of a later epoch, or of this one with other input.
        """
        epoch = self.identity
        if newest is None or newest.owner.lineage != epoch.owner.lineage or not self.epoch.counts(newest):
            return None
        if newest.epoch > epoch.epoch and self.epoch.committed:
            return None  # the replay of an older checkpoint: later epochs are published too
        if newest.epoch > epoch.epoch:
            raise CheckpointOutdated(f"{self} already published epoch {newest.epoch}; this is epoch {epoch.epoch}.")
        if newest.epoch < epoch.epoch:
            return None
        read = self.assigned.input_slice
        if (newest.input_slice, newest.query, newest.lane) != (read, epoch.query, self.number):
            raise CheckpointMismatch(
                f"{self} published epoch {epoch.epoch} from {newest.input_slice}, not {read}.",
                hint="the replay reads other input than the first attempt; do not change topics or options in between.",
            )
        return newest


def timeout_options(lane: Lane, timeout_ms: int) -> dict[str, str]:
    """Return the options of a lane's producer that depend on the time for a transaction."""
    linger_ms = int(lane.settings.options.get("linger.ms", _LINGER_MS))
    options = {"delivery.timeout.ms": str(max(timeout_ms, _REQUEST_MS + linger_ms))}
    if lane.settings.transactional:
        options["transaction.timeout.ms"] = str(timeout_ms)
    return options


def producer_options(lane: Lane, timeout_ms: int) -> dict[str, str]:
    """Return the options of a lane's producer, without its ids and its connection."""
    return {
        "enable.idempotence": "true",
        "acks": "all",
        "linger.ms": str(_LINGER_MS),
        "batch.size": str(lane.settings.limits.batch),
        "max.request.size": str(_MAX_RECORD_BYTES),
        "buffer.memory": str(lane.settings.buffer_bytes),
        "max.block.ms": str(_BLOCK_MS),
        "request.timeout.ms": str(_REQUEST_MS),
        "retry.backoff.ms": "2",  # a transaction right after another one is refused until that one is complete
        # The client asks brokers to create topics; so it must forget a topic before it may be deleted unnoticed.
        "metadata.max.idle.ms": str(_METADATA_IDLE_MS),
        "enable.metrics.push": "false",
        **timeout_options(lane, timeout_ms),
        **lane.settings.options,
    }
