"""Spark's own sink interface for Clonos: the tasks of an epoch spool their rows in the driver's JVM, in memory and then
on disk. Once all rows are computed, Python publishes them with Kafka's Java client.

Against ``foreachBatch`` no row crosses into a second Python worker, and Spark plans an epoch once. It needs a local
master. The Java side is `clonos.LaneSink` (`clonos.spark.java`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeGuard, runtime_checkable

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from clonos.extend.sink import LaneReport, SinkEpoch
from clonos.settings import KafkaSettings
from clonos.spark.internals import has_class, jvm_of
from clonos.spark.session import local_task_failures

FORMAT: Final = "clonos.LaneSink"
OPTION: Final = "query"
_LANES: Final = "CLONOS_LANES"  # ``python``: lanes as on a cluster, also with a local master


class TopicLimits(NamedTuple):
    """What a topic accepts."""

    partitions: int
    batch_bytes: int  # largest size of a batch with one record
    of_topic: bool  # whether the topic's own setting limits the size, not the brokers' one for requests


class SpooledRows:
    """The rows of one epoch, all computed and not published yet.

    Attributes:
        records: Number of records.
        dead_letters: Number of poison records among them.
        digest: Multiset digest of the records, 16 bytes.
    """

    def __init__(self, epoch: Any) -> None:
        self.records: int = epoch.records()
        self.dead_letters: int = epoch.deadLetters()
        self.digest = bytes(epoch.digest())
        self._epoch = epoch

    def send_to(self, producer: JvmProducer) -> None:
        """Queue all records at the producer, in the order of their partitions."""
        with _failures():
            self._epoch.sendTo(producer.java)


class Committer(Protocol):
    """Plans and commits the epochs of one query. Spark's stream thread calls it."""

    def begin(self, epoch: int, partitions: int) -> None:
        """Plan an epoch, after Spark has written ``offsets/epoch`` and before its tasks start.

        `partitions` is the number of partitions of the epoch's rows.
        """

    def commit(self, epoch: int, rows: SpooledRows) -> None:
        """Publish the rows and commit the epoch, before Spark writes ``commits/epoch``."""

    def abort(self, epoch: int) -> None:
        """Discard an epoch of which a task or the commit failed."""

    def limits(self, topic: str, again: bool) -> TopicLimits:
        """The limits of a topic, at its first record of an epoch. Spark's tasks call this, in their own threads.

        `again`: a record exceeds the known size limit.
        """


class DriverLane(Protocol):
    """The only lane of a query on a local master: it publishes whole epochs from the driver."""

    def begin(self, epoch: SinkEpoch) -> None:
        """Prepare to publish an epoch, while its tasks compute their rows."""

    def publish(self, epoch: SinkEpoch, rows: SpooledRows) -> list[LaneReport]:
        """Publish the rows if they are not published yet; returns and raises as `clonos.extend.sink.Sink.write`."""

    def discard(self) -> None:
        """Close what earlier epochs left open: an epoch failed, or the lane is claimed again."""

    def limits(self, topic: str, again: bool) -> TopicLimits:
        """As `Committer.limits`."""

    def close(self) -> None:
        """Release the lane after its query has ended."""


@runtime_checkable
class SpoolingSink(Protocol):
    """A sink that can publish spooled rows.

    Attributes:
        topic: Topic of rows without one.
    """

    topic: str | None

    def driver_lane(self, spark: SparkSession, kafka: KafkaSettings) -> DriverLane:
        """Create the lane of one start of the query. From then on `lanes` of this sink returns one lane an epoch."""


def can_spool(sink: object, spark: SparkSession) -> TypeGuard[SpoolingSink]:
    """Whether tasks and driver share a JVM that has the Java classes, and the sink can publish spooled rows."""
    if os.environ.get(_LANES) == "python" or not isinstance(sink, SpoolingSink):
        return False
    if not _is_own(type(sink)):
        return False
    return local_task_failures(spark.sparkContext.master) is not None and has_class(spark, FORMAT)


def _is_own(sink: type) -> bool:
    """Whether the class that publishes spooled rows also defines `write`: a subclass may have replaced `write`."""
    return next(base for base in sink.__mro__ if "write" in vars(base)) is next(
        base for base in sink.__mro__ if "driver_lane" in vars(base)
    )


@contextlib.contextmanager
def spooling(
    spark: SparkSession, committer: Committer, *, job: str, topic: str | None, folder: Path
) -> Iterator[dict[str, str]]:
    """Register the committer of one start of a query inside the context.

    Args:
        spark: The session, with a local master.
        committer: Plans and commits the query's epochs.
        job: The job's name, for dead letters.
        topic: Topic of rows without one.
        folder: Directory for rows that do not fit into memory.

    Yields:
        The options of the query's writer, whose format is `FORMAT`.
    """
    jvm = jvm_of(spark)
    # Not the query's name: a late task of an earlier start must not get the epoch of this one.
    key = secrets.token_hex(8)
    gateway: Any = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    callbacks = _Callbacks(gateway, committer)
    spooled = jvm.clonos.SpooledQuery(callbacks, job, topic, str(folder))
    jvm.clonos.LaneSink.register(key, spooled)
    try:
        yield {OPTION: key}
    finally:
        jvm.clonos.LaneSink.unregister(key)


class _Callbacks:
    """The Java interface that Py4J calls."""

    def __init__(self, gateway: Any, committer: Committer) -> None:
        self._gateway = gateway
        self._committer = committer

    def begin(self, epoch: int, partitions: int) -> None:
        self._committer.begin(epoch, partitions)

    def commit(self, epoch: int, rows: Any) -> None:
        self._committer.commit(epoch, SpooledRows(rows))

    def abort(self, epoch: int) -> None:
        self._committer.abort(epoch)

    def limits(self, topic: str, again: bool) -> Any:
        limits = self._gateway.new_array(self._gateway.jvm.long, 3)
        limits[0], limits[1], limits[2] = map(int, self._committer.limits(topic, again))
        return limits

    class Java:
        implements: Final = ["clonos.EpochCommitter"]


class ProducerFailed(Exception):
    """Kafka's Java client raised an exception.

    Attributes:
        kind: The exception's class without its package, such as ``TimeoutException``.
        of_commit: Whether a commit raised it that was sent, so that the outcome is unknown.
    """

    def __init__(self, kind: str, text: str, *, of_commit: bool) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.of_commit = of_commit


class JvmProducer:
    """A producer of Kafka's Java client, in the driver's JVM. Each method raises `ProducerFailed`.

    Args:
        spark: The session.
        options: Kafka's options of a producer.
    """

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        with _failures():
            self.java = jvm_of(spark).clonos.LaneProducer(dict(options))

    @staticmethod
    def transaction_version(spark: SparkSession, options: Mapping[str, str]) -> int:
        """The version of Kafka's transactions that the cluster uses; `options` are those of an admin client."""
        with _failures():
            version: int = jvm_of(spark).clonos.LaneProducer.transactionVersion(dict(options))
        return version

    def init(self) -> None:
        """Fence every earlier producer of the transactional id, and abort its open transaction."""
        with _failures():
            self.java.init()

    def begin(self) -> None:
        """Begin a transaction."""
        with _failures():
            self.java.begin()

    def commit(self, topic: str, partition: int, marker: bytes) -> int:
        """Send the marker and commit the transaction; returns the marker's offset."""
        with _failures(commit=True):
            offset: int = self.java.commit(topic, partition, marker)
        return offset

    def flush(self) -> None:
        """Wait until Kafka has every record, outside of transactions."""
        with _failures():
            self.java.flush()

    def abort(self) -> None:
        """Abort the transaction."""
        with _failures():
            self.java.abort()

    def close(self) -> None:
        """Close the producer without waiting."""
        with contextlib.suppress(Exception):  # the JVM may have exited
            self.java.close()


@contextlib.contextmanager
def _failures(*, commit: bool = False) -> Iterator[None]:
    try:
        yield
    except (Py4JJavaError, CapturedException) as error:
        failure: Any = error.java_exception if isinstance(error, Py4JJavaError) else error._origin
        record = failure.getClass().getSimpleName() == "RecordFailed"
        cause = failure.getCause() if record else failure
        of_commit = commit and not record
        raise ProducerFailed(cause.getClass().getSimpleName(), cause.getMessage() or "", of_commit=of_commit) from error
