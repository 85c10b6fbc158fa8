"""Kafka's Java clients in the driver's JVM (`clonos.LaneProducer` and `clonos.ClusterAdmin`), for Python."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from clonos.carried_errors import uncarry
from clonos.errors import BrokerUnavailable, ClonosError
from clonos.spark.internals import jvm_of
from clonos.spark.lane_sink import LaneRows


class NewestProducer(NamedTuple):
    """Id and epoch of the newest producer of a transactional id; both are -1 if Kafka knows none."""

    producer: int
    epoch: int


class ProducerFailed(Exception):
    """Kafka's Java client raised an exception."""

    def __init__(self, spark: SparkSession, failure: Any, *, of_commit: bool) -> None:
        super().__init__(f"{failure.getClass().getSimpleName()}: {failure.getMessage() or ''}")
        self.of_commit = of_commit  # whether a commit raised it that was sent, so that the outcome is unknown
        self._spark = spark
        self._failure = failure

    def typed(self, where: str, otherwise: type[ClonosError]) -> ClonosError:
        """Return the typed error: a refused record or user, a limit of the broker, or `otherwise`.

        Args:
            where: What failed, such as ``Lane 0 of orders``.
            otherwise: The class of the error for a reason that may pass.
        """
        error = uncarry(jvm_of(self._spark).clonos.KafkaFailure.typed(where, self._failure, "EpochFailed").getMessage())
        if error is None:
            raise AssertionError("KafkaFailure returned no typed error")
        return otherwise(error.what) if error.slug == "epoch-failed" else error


class JvmProducer:
    """A producer of Kafka's Java client, in the driver's JVM. Each method raises `ProducerFailed`.

    Args:
        spark: The session.
        options: Kafka's options of a producer.
    """

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        self._spark = spark
        with failures(spark):
            self.java = jvm_of(spark).clonos.LaneProducer(dict(options))

    def connect(self, topic: str) -> None:
        """Connect before `init`, or keep connected; this fences no producer."""
        with failures(self._spark):
            self.java.connect(topic)

    def init(self) -> None:
        """Fence every earlier producer of the transactional id, and abort its open transaction."""
        with failures(self._spark):
            self.java.init()

    def begin(self) -> None:
        """Begin a transaction."""
        with failures(self._spark):
            self.java.begin()

    def send(self, rows: LaneRows, *, topic: str = "") -> None:
        """Queue all records of a lane, in the order of their partitions.

        `topic` replaces the topics and partitions of the records; empty: they keep their own.
        """
        with failures(self._spark):
            self.java.send(rows.epoch, rows.task, topic or None)

    def mark(self, topic: str, partition: int, marker: bytes) -> None:
        """Queue the marker, the last record of the transaction."""
        with failures(self._spark):
            self.java.mark(topic, partition, marker)

    def commit(self, log_end: int = -1, topic_ids: Mapping[str, str] | None = None) -> int:
        """Commit the transaction, unless another driver has claimed the lane, or a topic was deleted and created again;
        returns the marker's offset.

        Args:
            log_end: The end of the marker's partition when the driver checked that it owns the lane; -1: neither the
                marker's offset nor an id is compared.
            topic_ids: The ids of the topics that may have records of the transaction, as far as they are known.
        """
        with failures(self._spark, commit=True):
            offset: int = self.java.commit(log_end, dict(topic_ids or {}))
        return offset

    def flush(self) -> None:
        """Wait until Kafka has every record, outside of transactions."""
        with failures(self._spark):
            self.java.flush()

    def abort(self) -> None:
        """Abort the transaction."""
        with failures(self._spark):
            self.java.abort()

    def close(self) -> None:
        """Close the producer without waiting."""
        with contextlib.suppress(Exception):  # the JVM may have exited
            self.java.close()


@contextlib.contextmanager
def failures(spark: SparkSession, *, commit: bool = False) -> Iterator[None]:
    """Inside the context, an exception of Kafka's Java client becomes `ProducerFailed`.

    Args:
        spark: The session.
        commit: Whether the context commits a transaction.
    """
    try:
        yield
    except (Py4JJavaError, CapturedException) as error:
        failure: Any = error.java_exception if isinstance(error, Py4JJavaError) else error._origin
        record = failure.getClass().getSimpleName() == "RecordFailed"
        cause = failure.getCause() if record or failure.getClass().getSimpleName() == "ExecutionException" else failure
        raise ProducerFailed(spark, cause, of_commit=commit and not record) from error


def transaction_version(spark: SparkSession, connection: Mapping[str, str]) -> int:
    """Return the version of Kafka's transactions that the cluster uses; `connection` has the options of an admin
    client.

    Raises:
        ProducerFailed: Kafka did not answer.
    """
    with failures(spark):
        version: int = _admin(spark, connection).transactionVersion()
    return version


def newest_producers(
    spark: SparkSession, connection: Mapping[str, str], transactional_ids: Collection[str]
) -> dict[str, NewestProducer]:
    """Return the newest producer of each transactional id (KIP-664).

    Raises:
        BrokerUnavailable: Kafka did not answer.
        KafkaAccessDenied: The user may not describe a transactional id.
    """
    try:
        with failures(spark):
            described = _admin(spark, connection).newestProducers(list(transactional_ids))
    except ProducerFailed as failure:
        raise failure.typed("Kafka did not describe the lanes' producers", BrokerUnavailable) from failure
    return {name: NewestProducer(newest.producer(), newest.epoch()) for name, newest in described.items()}


def _admin(spark: SparkSession, connection: Mapping[str, str]) -> Any:
    return jvm_of(spark).clonos.ClusterAdmin.of(dict(connection))
