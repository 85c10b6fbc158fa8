"""Publishes the rows of a whole epoch, which Spark's tasks have spooled, in one transaction of the driver's JVM.

With a local master a query has one lane: the whole epoch. The steps are those of `clonos_sinks.kafka.lane`; what
differs is who takes them. The driver takes all of them, after the last task, so that the transaction is open only while
records are sent. A producer is used for many epochs, until one of them fails.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from clonos.errors import (
    BrokerLimit,
    BrokerUnavailable,
    ClonosError,
    EpochFailed,
    KafkaAccessDenied,
    OutcomeUnknown,
    RecordRejected,
)
from clonos.extend.lanes import require_equal, require_owner
from clonos.extend.sink import LaneReport, Outcome, SinkEpoch
from clonos.kafka import client_config, spark_options
from clonos.log.control import lane_id
from clonos.log.records import Marker, encode
from clonos.log.transaction import MAX_RECORD_BYTES, Aborted
from clonos.settings import KafkaSettings
from clonos.spark.spooling import JvmProducer, ProducerFailed, SpooledRows, TopicLimits
from clonos_sinks.kafka.lane import Lane, published_marker
from clonos_sinks.kafka.targets import Limits, Targets

_COMMIT_S: Final = 30.0
_EPOCH_PER_TRANSACTION: Final = 2  # the version of Kafka's transactions with KIP-890
_REFUSED: Final = frozenset(
    {
        "SaslAuthenticationException",
        "SslAuthenticationException",
        "UnsupportedSaslMechanismException",
        "TopicAuthorizationException",
        "ClusterAuthorizationException",
        "TransactionalIdAuthorizationException",
        "GroupAuthorizationException",
    }
)


class SpooledLane:
    """The only lane of a query on a local master.

    Args:
        spark: The session.
        kafka: The cluster.
        limits: The size limits of the cluster.
        transactional: False for ``at-least-once``: no transactions and no markers.
        first_timeout_ms: ``transaction.timeout.ms`` of a first attempt; it doubles with each failed attempt.
        longest_timeout_ms: The broker's limit of it.
    """

    def __init__(
        self,
        spark: SparkSession,
        kafka: KafkaSettings,
        limits: Limits,
        *,
        transactional: bool,
        first_timeout_ms: int,
        longest_timeout_ms: int,
    ) -> None:
        self._spark = spark
        self._kafka = kafka
        self._limits = limits
        self._transactional = transactional
        self._first_timeout_ms = first_timeout_ms
        self._longest_timeout_ms = longest_timeout_ms
        self._targets = Targets(kafka, AdminClient(client_config(kafka)), limits)
        self._opener = ThreadPoolExecutor(1, "clonos-lane")
        self._opening: Future[JvmProducer] | None = None
        self._producer: JvmProducer | None = None
        self._version: int | None = None  # of Kafka's transactions

    def begin(self, epoch: SinkEpoch) -> None:
        """Open the producer while Spark's tasks compute the rows, unless an earlier epoch opened it."""
        if epoch.lanes and not epoch.committed and self._producer is None:
            self._opening = self._opener.submit(self._open, self._lane(epoch))

    def publish(self, epoch: SinkEpoch, rows: SpooledRows) -> list[LaneReport]:
        """Publish the rows, or compare them if an earlier attempt published them.

        Raises:
            Superseded: A newer generation owns the lane.
            CheckpointMismatch: The lane's newest marker does not fit this epoch.
            ReplayDivergence: An earlier attempt published other rows.
            OutcomeUnknown: The commit's outcome is unknown, and the log has no marker of this attempt.
            EpochFailed: The transaction was aborted.
        """
        if not epoch.lanes:
            return []
        lane = self._lane(epoch)
        lane.at_point("state-committed")
        if epoch.committed:
            return [self._audited(lane, rows, lane.assigned.marker)]
        if not self._transactional:
            return [self._deliver(lane, rows)]
        if not rows.records and (lane.assigned.marker is None or lane.assigned.marker.epoch != lane.identity.epoch):
            return [LaneReport(lane.number, "empty", 0, b"")]
        producer = self._opened(lane)  # step 1
        lane.at_point("lane-initialised")
        tail = require_owner(lane.epoch, lane.assigned)  # step 2
        lane.at_point("lane-tail-read")
        published = published_marker(lane, tail) if tail else None  # step 3
        lane.at_point("lane-decided")
        if published is not None:
            return require_equal([self._audited(lane, rows, published)], epoch)
        try:
            report = self._commit(lane, producer, rows)
        except EpochFailed:
            require_owner(lane.epoch, lane.assigned, reread=True)  # Superseded, if a takeover fenced the producer
            raise
        if (self._version or 0) < _EPOCH_PER_TRANSACTION:
            self.discard()  # a delayed end of this transaction could end the next one of the same producer
        return [report]

    def discard(self) -> None:
        """Close the producer: the next attempt opens a new one, which fences it."""
        opening, self._opening = self._opening, None
        producer, self._producer = self._producer, None
        if opening is not None:
            opening.add_done_callback(_close_opened)
        if producer is not None:
            producer.close()

    def close(self) -> None:
        """Release the lane after its query has ended."""
        self.discard()
        self._opener.shutdown(wait=False)

    def limits(self, topic: str) -> TopicLimits:
        """The limits of a topic, read from Kafka.

        Raises:
            TopicMissing: The topic does not exist.
            BrokerUnavailable: Kafka did not answer.
        """
        target = self._targets.newest(topic)
        return TopicLimits(target.partitions, target.limit, target.limit < self._limits.largest)

    def _lane(self, epoch: SinkEpoch) -> Lane:
        timeout_ms = min(self._longest_timeout_ms, self._first_timeout_ms * 2**epoch.attempt)
        return Lane(epoch, epoch.lanes[0], timeout_ms, self._limits)

    def _opened(self, lane: Lane) -> JvmProducer:
        if self._producer is None:
            opening, self._opening = self._opening, None
            self._producer = opening.result() if opening is not None else self._open(lane)
        return self._producer

    def _open(self, lane: Lane) -> JvmProducer:
        """A producer; if it is transactional, it has fenced every earlier one of the lane."""
        name = lane_id(lane.identity.job, lane.identity.query, lane.number)
        producer = JvmProducer(self._spark, self._options(lane, name))
        if not self._transactional:
            return producer
        try:
            producer.init()
            if self._version is None:
                self._version = JvmProducer.transaction_version(self._spark, self._connection())
        except ProducerFailed as failure:
            producer.close()
            if failure.kind == "InvalidTxnTimeoutException":
                raise BrokerLimit(
                    f"The broker refuses transaction.timeout.ms={lane.timeout_ms}: {failure}.",
                    kept="nothing was published.",
                    hint="lower the sink's transaction timeout or raise the broker's transaction.max.timeout.ms.",
                ) from failure
            kind = KafkaAccessDenied if failure.kind in _REFUSED else BrokerUnavailable
            raise kind(f"No transaction could be opened as {name}: {failure}.") from failure
        return producer

    def _connection(self) -> dict[str, str]:
        """The options with which each of Kafka's Java clients connects."""
        options = {key.removeprefix("kafka."): value for key, value in spark_options(self._kafka).items()}
        del options["allow.auto.create.topics"]
        return options

    def _options(self, lane: Lane, name: str) -> dict[str, str]:
        options = {
            **self._connection(),
            "client.id": name,
            "enable.idempotence": "true",
            "acks": "all",
            "linger.ms": "5",
            "batch.size": str(lane.limits.batch),
            "max.request.size": str(MAX_RECORD_BYTES),
            "buffer.memory": str(max(_BUFFER_BYTES, min(lane.limits.record, MAX_RECORD_BYTES))),
            "max.block.ms": str(round(_COMMIT_S * 1000)),
            "delivery.timeout.ms": str(max(lane.timeout_ms, _REQUEST_MS + 5)),
            "request.timeout.ms": str(_REQUEST_MS),
            "retry.backoff.ms": "2",  # a transaction right after another one is refused until that one is complete
            "enable.metrics.push": "false",
        }
        if self._transactional:
            options |= {"transactional.id": name, "transaction.timeout.ms": str(lane.timeout_ms)}
        return options

    def _audited(self, lane: Lane, rows: SpooledRows, published: Marker | None) -> LaneReport:
        if published is None or published.epoch != lane.identity.epoch:
            return LaneReport(lane.number, "skipped" if rows.records else "empty", rows.records, rows.digest)
        same = (published.records, published.digest) == (rows.records, rows.digest)
        return LaneReport(lane.number, "audited", rows.records, rows.digest, diverged=not same)

    def _deliver(self, lane: Lane, rows: SpooledRows) -> LaneReport:
        """Publish the rows at least once: without a transaction and without a marker."""
        producer = self._opened(lane)
        rows.send_to(producer)
        try:
            producer.flush()
        except ProducerFailed as failure:
            raise _failed(lane, failure) from failure
        outcome: Outcome = "published" if rows.records else "empty"
        return LaneReport(lane.number, outcome, rows.records, rows.digest, dead_letters=rows.dead_letters)

    def _commit(self, lane: Lane, producer: JvmProducer, rows: SpooledRows) -> LaneReport:
        marker = Marker(
            owner=lane.identity.owner,
            query=lane.identity.query,
            epoch=lane.identity.epoch,
            lane=lane.number,
            input_slice=lane.assigned.input_slice,
            records=rows.records,
            digest=rows.digest,
        )
        with self._aborting(lane, producer):
            producer.begin()  # step 4
            lane.at_point("lane-begun")
            rows.send_to(producer)
            lane.at_point("lane-produced")
        lane.at_point("lane-marked")
        offset = -1
        try:
            with self._aborting(lane, producer):
                offset = self._confirmed(lane, producer, marker)
        except ProducerFailed as failure:
            self._resolve(lane, marker, str(failure))  # step 5
        lane.at_point("lane-committed")
        return LaneReport(
            lane.number, "published", rows.records, rows.digest, marker_offset=offset, dead_letters=rows.dead_letters
        )

    @contextlib.contextmanager
    def _aborting(self, lane: Lane, producer: JvmProducer) -> Iterator[None]:
        """Abort the transaction if a step fails before the commit was sent: this may be the last attempt, and readers
        would wait until the transaction times out.

        Lets `ProducerFailed` pass if the commit was sent and its outcome is unknown.
        """
        try:
            yield
        except BaseException as failure:
            unknown = isinstance(failure, ProducerFailed) and failure.of_commit
            if not unknown:
                with contextlib.suppress(ProducerFailed):
                    producer.abort()
            if isinstance(failure, ProducerFailed) and not unknown:
                raise _failed(lane, failure) from failure
            raise

    def _confirmed(self, lane: Lane, producer: JvmProducer, marker: Marker) -> int:
        """Commit; repeats a commit that timed out. Returns the marker's offset, or -1 if it is not known."""
        deadline = time.monotonic() + _COMMIT_S
        try:
            return producer.commit(lane.identity.log_topic, lane.assigned.log_partition, encode(marker))
        except ProducerFailed as failure:
            if not failure.of_commit or failure.kind != "TimeoutException" or time.monotonic() > deadline:
                raise
        producer.commit_again()
        return -1

    def _resolve(self, lane: Lane, marker: Marker, reason: str) -> None:
        """Read the outcome of an unknown commit from the log; returns if the commit happened."""
        self.discard()
        self._producer = self._open(lane)  # after this, the old transaction is either committed or aborted
        tail = require_owner(lane.epoch, lane.assigned, reread=True)
        if tail is None or tail.record != marker:
            raise OutcomeUnknown(f"{lane} was not committed in epoch {lane.identity.epoch}: {reason}.")


def _close_opened(opening: Future[JvmProducer]) -> None:
    if opening.exception() is None:
        opening.result().close()


def _failed(lane: Lane, failure: ProducerFailed) -> ClonosError:
    """The typed error of a record that Kafka refused; its transaction is aborted with its producer."""
    if failure.kind in ("RecordTooLargeException", "RecordBatchTooLargeException"):
        # A replay would meet the same limit: the sink's copy of it is older than the broker's.
        return RecordRejected(
            f"{lane}: {failure}.",
            hint="raise the topic's max.message.bytes; if it was just changed, run the job again.",
        )
    if failure.kind in _REFUSED:
        return KafkaAccessDenied(f"{lane}: {failure}.")
    return Aborted(f"{lane}: {failure}.")


_BUFFER_BYTES: Final = 64 * 1024 * 1024
_REQUEST_MS: Final = 30_000
