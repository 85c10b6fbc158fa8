"""Publishes a lane whose rows are spooled in the driver's JVM, in one transaction.

With a local master, and with ``atomic-epoch`` on a cluster, a query has one lane: the whole epoch. The steps are those
of `clonos_sinks.kafka.partitioned`; what differs is who takes them. The driver takes all of them, after the last task.
A producer is used for many epochs, until one of them fails.

In the replay of an epoch that is published in part, the driver publishes each lane of the rest in the same way.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from clonos.errors import BrokerUnavailable, EpochFailed, EpochTooLarge, OutcomeUnknown
from clonos.extend.lanes import require_equal, require_owner
from clonos.extend.sink import LaneReport, Outcome, SinkEpoch
from clonos.kafka import java_options
from clonos.log.reading import shared_reader
from clonos.log.records import InputSlice, Marker, encode, whole_epoch
from clonos.log.transaction import Aborted
from clonos.settings import KafkaSettings
from clonos.spark.lane_sink import EpochRows, LaneRows, TaskPlan
from clonos_sinks.kafka.clients import JvmProducer, ProducerFailed, transaction_version
from clonos_sinks.kafka.lane import EPOCH_PER_TRANSACTION, Lane, LaneSettings, producer_options


class SpooledLane:
    """The only lane of a query whose epochs the driver publishes, as a `clonos.spark.lane_sink.EpochWriter`.

    Args:
        spark: The session.
        kafka: The Kafka cluster.
        settings: Those of the sink's lanes.
    """

    def __init__(self, spark: SparkSession, kafka: KafkaSettings, settings: LaneSettings) -> None:
        self._spark = spark
        self._settings = settings
        self._connection = java_options(kafka)
        self.topic = settings.topic
        # Only this thread calls the producer: Spark interrupts its own threads, and then Kafka's client gives up.
        self._thread = ThreadPoolExecutor(1, "clonos-lane")
        self._opening: Future[JvmProducer] | None = None
        self._lock = threading.Lock()
        self._producer: JvmProducer | None = None  # open, or being opened
        self._producer_timeout_ms = 0
        self._ready = False
        self._discards = 0  # number of calls of `discard`
        self._closed = False
        self._version = 0  # of Kafka's transactions

    @property
    def checks(self) -> Any:
        """A Java supplier of each epoch's ``clonos.TopicCheck``."""
        return self._settings.checks(self._spark, self._connection)

    def frame(self, frame: DataFrame) -> DataFrame:
        """Return the sink's frame: the JVM converts its rows to records."""
        return frame

    def lanes(self, slices: tuple[InputSlice, ...]) -> tuple[InputSlice, ...]:
        """Return one lane for all partitions."""
        return whole_epoch(slices)

    def begin(self, epoch: SinkEpoch, partitions: int) -> TaskPlan:
        """Open the producer while Spark's tasks compute the rows, unless an earlier epoch opened it.

        The tasks send their rows; if an earlier attempt published them, they are only counted and compared.

        Raises:
            CheckpointMismatch: The lane's newest marker does not fit this epoch.
        """
        if epoch.committed or not epoch.lanes:
            return TaskPlan.of_all("COUNT", partitions)
        (lane,) = self._settings.lanes(epoch)
        is_published = self._settings.transactional and lane.published_marker(lane.assigned.marker) is not None
        if self._opening is None or self._opening.done():
            self._opening = self._thread.submit(self._connected, lane)
        return TaskPlan.of_all("COUNT" if is_published else "SEND", partitions)

    def rehearse(self, _epoch: SinkEpoch, partitions: int) -> TaskPlan:
        """Let the tasks send their rows."""
        return TaskPlan.of_all("SEND", partitions)

    def publish(self, epoch: SinkEpoch, rows: EpochRows) -> list[LaneReport]:
        """Publish the rows, or compare them if an earlier attempt published them.

        Raises:
            Superseded: A newer generation owns the lane.
            CheckpointMismatch: The lane's newest marker does not fit this epoch.
            ReplayDivergence: An earlier attempt published other rows.
            OutcomeUnknown: The commit's outcome is unknown, and the log has no marker of this attempt.
            EpochFailed: The transaction was aborted.
        """
        return [self.submit(lane, rows.all).result() for lane in self._settings.lanes(epoch)]

    def submit(self, lane: Lane, rows: LaneRows) -> Future[LaneReport]:
        """Publish or compare one lane in this object's thread; `publish` lists the errors."""
        return self._thread.submit(self._publish, lane, rows)

    def _publish(self, lane: Lane, rows: LaneRows) -> LaneReport:
        lane.at_point("state-committed")
        marker = lane.assigned.marker
        if lane.epoch.committed:
            return _audited(lane, rows, marker)
        if not self._settings.transactional:
            return self._deliver(lane, rows)
        if not rows.records and (marker is None or marker.epoch != lane.identity.epoch):
            return LaneReport(lane.number, "empty", 0, b"")
        if self._opening is not None:
            self._opening.result()  # its error, if it failed
        producer = self._opened(lane, lane.timeout_of(rows.size))  # step 1
        lane.at_point("lane-initialised")
        tail = require_owner(lane.epoch, lane.assigned)  # step 2
        lane.at_point("lane-tail-read")
        published = lane.published_marker(tail.marker) if tail else None  # step 3
        lane.at_point("lane-decided")
        if published is not None:
            return require_equal([_audited(lane, rows, published)], lane.epoch)[0]
        try:
            report = self._commit(lane, producer, rows, max(tail.end if tail else -1, lane.assigned.log_end))
        except (EpochFailed, EpochTooLarge):
            require_owner(lane.epoch, lane.assigned, reread=True)  # Superseded, if a takeover fenced the producer
            raise
        if self._version < EPOCH_PER_TRANSACTION:
            self.discard()  # a delayed end of this transaction could end the next one of the same producer
        return report

    def discard(self) -> None:
        """Close the producer; the next epoch opens a new one, which fences it."""
        with self._lock:
            producer, self._producer, self._ready = self._producer, None, False
            self._opening = None
            self._discards += 1
        if producer is not None:
            producer.close()

    def close(self) -> None:
        """Release the lane after its query has ended."""
        self._closed = True
        self.discard()
        self._thread.shutdown(wait=False)

    def _connected(self, lane: Lane) -> JvmProducer:
        """Return the producer; this also connects the reader of the log that `require_owner` uses, once in this
        thread.
        """
        producer = self._opened(lane)
        if self._settings.transactional:
            shared_reader(lane.epoch.kafka, lane.identity.log_topic)
        return producer

    def _opened(self, lane: Lane, timeout_ms: int = 0) -> JvmProducer:
        """Return a producer with at least this timeout; a new one, if it is transactional, has fenced every earlier one
        of the lane.
        """
        timeout_ms = max(timeout_ms, lane.timeout_ms)
        if self._producer is not None and self._ready:
            if self._producer_timeout_ms >= timeout_ms:
                return self._producer
            self.discard()
        discards = self._discards
        name = lane.transactional_id
        options = self._connection | producer_options(lane, timeout_ms) | {"client.id": name}
        producer = JvmProducer(
            self._spark, options | ({"transactional.id": name} if self._settings.transactional else {})
        )
        with self._lock:
            current = self._discards == discards and not self._closed
            if current:
                self._producer_timeout_ms = timeout_ms
                self._producer = producer  # so that `discard` ends the init: a late one would fence the next claim
        if not current:
            producer.close()
            raise EpochFailed(f"{lane}: the lane was discarded before its producer was opened.")
        if self._settings.transactional:
            try:
                producer.init()
                self._version = transaction_version(self._spark, self._connection)
            except ProducerFailed as failure:
                self.discard()
                raise failure.typed(f"No transaction could be opened as {name}", BrokerUnavailable) from failure
        with self._lock:
            if self._producer is not producer:
                raise EpochFailed(f"{lane}: the producer was closed while it was opened.")
            self._ready = True
        return producer

    def _deliver(self, lane: Lane, rows: LaneRows) -> LaneReport:
        """Publish the rows at least once: without a transaction and without a marker."""
        producer = self._opened(lane, lane.timeout_of(rows.size))
        try:
            producer.send(rows, topic=lane.epoch.dead_letter_topic)
            producer.flush()
        except ProducerFailed as failure:
            raise failure.typed(str(lane), EpochFailed) from failure
        outcome: Outcome = "published" if rows.records else "empty"
        return LaneReport(lane.number, outcome, rows.records, rows.digest, dead_letters=rows.dead_letters)

    def _commit(self, lane: Lane, producer: JvmProducer, rows: LaneRows, log_end: int) -> LaneReport:
        marker = lane.marker(rows.records, rows.digest)
        with self._aborting(lane, producer):
            producer.begin()  # step 4
            lane.at_point("lane-begun")
            producer.send(rows, topic=lane.epoch.dead_letter_topic)
            lane.at_point("lane-produced")
            producer.mark(lane.identity.log_topic, lane.assigned.log_partition, encode(marker))
            lane.at_point("lane-marked")
        offset = -1
        try:
            with self._aborting(lane, producer):
                offset = producer.commit(log_end, lane.epoch.topic_ids)
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
                error = failure.typed(str(lane), Aborted)
                if isinstance(error, EpochTooLarge) and self._producer_timeout_ms < self._settings.longest_timeout_ms:
                    error = Aborted(error.what)  # the next attempt has the longest time
                raise error from failure
            raise

    def _resolve(self, lane: Lane, marker: Marker, reason: str) -> None:
        """Read the outcome of an unknown commit from the log; returns if the commit happened."""
        require_owner(lane.epoch, lane.assigned, reread=True)  # before a new producer fences a successor's
        self.discard()
        self._opened(lane)  # after this, the old transaction is either committed or aborted
        tail = require_owner(lane.epoch, lane.assigned, reread=True)
        if tail is None or tail.record != marker:
            raise OutcomeUnknown(f"{lane} was not committed in epoch {lane.identity.epoch}: {reason}.")


def _audited(lane: Lane, rows: LaneRows, published: Marker | None) -> LaneReport:
    """Compare the rows of a replay with those that the marker `published` describes."""
    if published is None or published.epoch != lane.identity.epoch:
        return LaneReport(lane.number, "skipped" if rows.records else "empty", rows.records, rows.digest)
    same = (published.records, published.digest) == (rows.records, rows.digest)
    return LaneReport(lane.number, "audited", rows.records, rows.digest, diverged=not same)
