"""Spark's own sink interface for Clonos: the rows of an epoch are spooled in the driver's JVM, in memory and then on
disk. Once all rows are computed, Python publishes them with Kafka's Java client.

With a local master the tasks spool them. The executors of a cluster send them to the driver, for a sink with
``delivery="atomic-epoch"`` (docs/adr/0038-the-driver-publishes-atomic-epochs.md).

Against ``foreachBatch`` no row crosses into a second Python worker, and Spark plans an epoch once. The Java side is
`clonos.LaneSink` (`clonos.spark.java`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeGuard, runtime_checkable

from pyspark.sql import SparkSession

from clonos.extend.sink import DeliveryMode, LaneReport, SinkEpoch
from clonos.settings import KafkaSettings
from clonos.spark.internals import has_class, jvm_of, start_callbacks
from clonos.spark.kafka_clients import JvmProducer, failures
from clonos.spark.session import local_task_failures

FORMAT: Final = "clonos.LaneSink"
OPTION: Final = "key"
_MAX_INT: Final = 2**31 - 1
_LANES: Final = "CLONOS_LANES"  # ``partition``: lanes as on a cluster, also with a local master


class WriteLimits(NamedTuple):
    """The cluster of a sink's topics, and the largest batches that a producer can send to it."""

    connection: dict[str, str]  # Kafka's options of an admin client, which reads the limits of each topic
    request_bytes: int  # the largest batch that fits into a request
    buffer_bytes: int  # the largest batch that fits into the producer's buffer


class SpooledRows:
    """The rows of one epoch, all computed and not published yet.

    Attributes:
        records: Number of records.
        bytes: Size of the records.
        dead_letters: Number of poison records among them.
        digest: Multiset digest of the records, 16 bytes.
    """

    def __init__(self, spark: SparkSession, epoch: Any) -> None:
        self._spark = spark
        self.records: int = epoch.records()
        self.bytes: int = epoch.bytes()
        self.dead_letters: int = epoch.deadLetters()
        self.digest = bytes(epoch.digest())
        self._epoch = epoch

    def send_to(self, producer: JvmProducer, *, topic: str = "") -> None:
        """Queue all records at the producer, in the order of their partitions.

        `topic` replaces the topics and partitions of the records; empty: they keep their own.
        """
        with failures(self._spark):
            self._epoch.sendTo(producer.java, topic or None)


class Committer(Protocol):
    """Plans and commits the epochs of one query. Spark's stream thread calls it."""

    def begin(self, epoch: int, partitions: int) -> bool:
        """Plan an epoch, after Spark has written ``offsets/epoch`` and before its tasks start.

        Args:
            epoch: Spark's batch id.
            partitions: Number of partitions of the epoch's rows.

        Returns:
            Whether the rows are published; False: they are only counted and compared.
        """

    def commit(self, epoch: int, rows: SpooledRows) -> None:
        """Publish the rows and commit the epoch, before Spark writes ``commits/epoch``."""

    def abort(self, epoch: int) -> None:
        """Discard an epoch whose task or commit failed."""


class DriverLane(Protocol):
    """The only lane of a query whose rows are spooled in the driver: it publishes whole epochs.

    Attributes:
        limits: What the lane can write.
    """

    limits: WriteLimits

    def begin(self, epoch: SinkEpoch) -> bool:
        """Prepare to publish an epoch, while its tasks compute their rows.

        Returns whether its rows are published; False: an earlier attempt did, so they are only counted and compared.
        """

    def publish(self, epoch: SinkEpoch, rows: SpooledRows) -> list[LaneReport]:
        """Publish the rows if they are not published yet; returns and raises as `clonos.extend.sink.Sink.write`."""

    def discard(self) -> None:
        """Close what earlier epochs left open: an epoch failed, or the lane is claimed again."""

    def close(self) -> None:
        """Release the lane after its query has ended."""


@runtime_checkable
class SpoolingSink(Protocol):
    """A sink that can publish spooled rows.

    Attributes:
        topic: Topic of rows without one.
        delivery: The sink's delivery guarantee.
    """

    topic: str | None
    delivery: DeliveryMode

    def driver_lane(self, spark: SparkSession, kafka: KafkaSettings) -> DriverLane:
        """Create the lane of one start of the query. From then on `lanes` of this sink returns one lane an epoch."""


def can_spool(sink: object, spark: SparkSession) -> TypeGuard[SpoolingSink]:
    """Whether the driver publishes the sink's rows: it can, with the Java classes in the session; and it must, since
    tasks and driver share a JVM, or the whole epoch has one transaction.
    """
    if os.environ.get(_LANES) == "partition" or not publishes_in_jvm(sink):
        return False
    is_local = local_task_failures(spark.sparkContext.master) is not None
    return (is_local or sink.delivery == "atomic-epoch") and has_class(spark, FORMAT)


def publishes_in_jvm(sink: object) -> TypeGuard[SpoolingSink]:
    """Whether no Python worker publishes the sink's lanes."""
    return isinstance(sink, SpoolingSink) and _is_own(type(sink))


def _is_own(sink: type) -> bool:
    """Whether the class that publishes spooled rows also defines `write`: a subclass may have replaced `write`."""
    return next(base for base in sink.__mro__ if "write" in vars(base)) is next(
        base for base in sink.__mro__ if "driver_lane" in vars(base)
    )


@contextlib.contextmanager
def spooling(
    spark: SparkSession,
    committer: Committer,
    *,
    job: str,
    topic: str | None,
    folder: Path,
    limits: WriteLimits | None,
) -> Iterator[dict[str, str]]:
    """Register the committer of one start of a query inside the context.

    Args:
        spark: The session.
        committer: Plans and commits the query's epochs.
        job: The job's name, for dead letters.
        topic: Topic of rows without one.
        folder: Directory for rows that do not fit into memory.
        limits: What the query's lane can write; None: for a rehearsal, which has no rows.

    Yields:
        The options of the query's writer, whose format is `FORMAT`.
    """
    jvm = jvm_of(spark)
    # Not the query's name: a late task of an earlier start must not get the epoch of this one.
    key = secrets.token_hex(8)
    start_callbacks(spark)
    callbacks = _Callbacks(spark, committer)
    connection, request_bytes, buffer_bytes = limits or (None, 0, 0)
    spooled = jvm.clonos.SpooledQuery(
        callbacks, job, topic, str(folder), connection, min(request_bytes, _MAX_INT), min(buffer_bytes, _MAX_INT)
    )
    jvm.clonos.LaneSink.register(key, spooled)
    try:
        yield {OPTION: key}
    finally:
        jvm.clonos.LaneSink.unregister(key)


class _Callbacks:
    """The Java interface that Py4J calls."""

    def __init__(self, spark: SparkSession, committer: Committer) -> None:
        self._spark = spark
        self._committer = committer

    def begin(self, epoch: int, partitions: int) -> bool:
        return self._committer.begin(epoch, partitions)

    def commit(self, epoch: int, rows: Any) -> None:
        self._committer.commit(epoch, SpooledRows(self._spark, rows))

    def abort(self, epoch: int) -> None:
        self._committer.abort(epoch)

    class Java:
        implements: Final = ["clonos.EpochCommitter"]
