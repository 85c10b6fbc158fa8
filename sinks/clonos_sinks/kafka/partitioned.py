"""Publishes an epoch whose lanes are its partitions: the task that has a lane's rows publishes them in one transaction.

For one lane of epoch *e* under owner *o* (the same steps as in `docs/protocol.md`):

1. The driver reads the newest producer of the lane's transactional id, and then checks that *o* still owns the job. So
   a later owner cannot have opened that producer. It reads ahead, after the lane's last transaction, and reads again if
   a claim followed (`clonos_sinks.kafka.read_ahead`).
2. The task opens a new producer (``init_transactions``, KIP-98), and checks that it follows the producer of step
   1. Otherwise another owner may have opened the lane in between: the epoch fails. A producer that the task's JVM kept
   from the lane's last transaction needs no check (KIP-890): nobody has fenced it since.
3. In a replay: a lane with a marker of epoch *e* is published. Its rows are computed again and compared (*replay
   audit*). With a marker of a later epoch, or of other input: `CheckpointMismatch`. The claim of *o* read the markers.
   If only some lanes are published, the rows of the others go to the driver, which publishes them after the audit.
4. Once the task has computed all of its rows, it begins the transaction, sends rows and marker, and commits. Before the
   commit it compares the marker's offset with the end of the log that the driver knows (`clonos.LogGap`).
5. After any error the epoch fails. A new claim opens every lane, which ends the transactions, and reads the markers.

The task's side is in Java (`clonos.LaneTask`).
"""

from __future__ import annotations

from concurrent.futures import wait
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession

from clonos import faults
from clonos.errors import EpochFailed
from clonos.extend.lanes import require_equal, require_job
from clonos.extend.sink import LaneReport, SinkEpoch
from clonos.kafka import java_options
from clonos.log.records import InputSlice, marker_head
from clonos.settings import KafkaSettings
from clonos.spark.lane_sink import EpochRows, Rows, TaskOutcome, TaskPlan
from clonos_sinks.kafka.clients import NewestProducer, ProducerFailed
from clonos_sinks.kafka.lane import EPOCH_PER_TRANSACTION, Lane, LaneSettings, producer_options, timeout_options
from clonos_sinks.kafka.read_ahead import ReadAhead
from clonos_sinks.kafka.spooled import SpooledLane

_UNKNOWN: Final = NewestProducer(-1, -1)


class TaskLane(msgspec.Struct, frozen=True, rename="camel"):
    """One lane, for the task that publishes it."""

    name: str  # for messages
    transactional_id: str  # the transactional id of the lane's producers
    producer_id: int  # the newest producer of that id, which no later owner of the job can have opened
    producer_epoch: int  # the epoch of that producer
    newest_offset: int  # offset of the newest claim or marker in the lane's log partition; -1 if it is not known
    log_end: int  # the end of the log partition after the owner's newest claim or marker; -1 if it is not known
    log_partition: int  # the lane's partition of the causal log
    marker: bytes  # the head of the lane's marker (`clonos.log.records.marker_head`)


class LanePass(msgspec.Struct, frozen=True, rename="camel", tag="clonos.LanePass", tag_field="class"):
    """How the tasks of an epoch publish their lanes to Kafka."""

    topic: str | None  # topic of rows without one
    log_topic: str  # the causal log
    transactional: bool  # False: rows are published at least once, without markers
    kept: bool  # whether a producer may serve more than one transaction (KIP-890)
    rehearsed: bool  # whether tasks without rows connect, so that a takeover finds all classes loaded
    request_bytes: int  # the largest batch that fits into a request
    buffer_bytes: int  # the largest batch that fits into a producer's buffer
    connection: dict[str, str]  # the options with which Kafka's Java clients connect
    producer: dict[str, str]  # further options of the producers
    patient: dict[str, str]  # options that replace those for a lane of more than `patient_bytes`
    patient_bytes: int  # bytes
    # The ids of the topics that may have records of the transactions, as far as they are known.
    topic_ids: dict[str, str]
    lanes: tuple[TaskLane, ...]  # by Spark's partition index


class PartitionedLanes:
    """The lanes of a query with one for each partition, as a `clonos.spark.lane_sink.EpochWriter`.

    In a replay of an epoch that earlier attempts published in part, the rows of the other lanes go to the driver. It
    compares the published lanes first, and then publishes the rest.

    Args:
        spark: The session.
        kafka: The Kafka cluster.
        settings: Those of the sink's lanes.
    """

    def __init__(self, spark: SparkSession, kafka: KafkaSettings, settings: LaneSettings) -> None:
        self._spark = spark
        self._kafka = kafka
        self._settings = settings
        self._connection = java_options(kafka)
        self._ahead = ReadAhead()
        self._plan = TaskPlan(())  # of the epoch in progress
        self.topic = settings.topic

    @property
    def checks(self) -> Any:
        """A Java supplier of each epoch's ``clonos.TopicCheck``."""
        return self._settings.checks(self._spark, self._connection)

    def frame(self, frame: DataFrame) -> DataFrame:
        """Return the sink's frame: the JVM converts its rows to records."""
        return frame

    def lanes(self, slices: tuple[InputSlice, ...]) -> tuple[InputSlice, ...]:
        """Return one lane for each partition."""
        return slices

    def begin(self, epoch: SinkEpoch, partitions: int) -> TaskPlan:
        """Let the tasks publish their lanes (step 1); published lanes are only counted and compared.

        Raises:
            Superseded: A newer owner claimed the job.
            CheckpointMismatch: A lane's newest marker does not fit this epoch.
            EpochFailed: Kafka did not answer.
        """
        lanes = self._settings.lanes(epoch)
        published = {lane.number for lane in lanes if lane.published_marker(lane.assigned.marker) is not None}
        if epoch.committed or (lanes and published.issuperset(lane.number for lane in lanes)):
            self._plan = TaskPlan.of_all("COUNT", partitions)
        elif published or epoch.dead_letter_topic:  # records for another topic: the driver moves them
            rows: list[Rows] = ["SEND"] * partitions
            for lane in lanes:
                if lane.number in published:
                    rows[lane.assigned.task] = "COUNT"
            self._plan = TaskPlan(tuple(rows))
        else:
            newest = self._newest_producers(epoch, lanes)
            self._plan = self._publishing(lanes, newest, partitions, kept=bool(newest) and self._keeps_producers())
        return self._plan

    def rehearse(self, epoch: SinkEpoch, partitions: int) -> TaskPlan:
        """Let the tasks publish their lanes, which have no rows; the tasks connect to Kafka."""
        return self._publishing(self._settings.lanes(epoch), {}, partitions, kept=False, rehearsed=True)

    def publish(self, epoch: SinkEpoch, rows: EpochRows) -> list[LaneReport]:
        """Report the lanes that the tasks have published or compared; publish those whose rows the driver got.

        Raises:
            Superseded: A newer owner claimed the job.
            ReplayDivergence: A published lane differs from this replay. No further lane was published.
            EpochFailed: A lane was not published.
        """
        lanes = self._settings.lanes(epoch)
        sent = [lane for lane in lanes if self._plan.rows[lane.assigned.task] == "SEND"]
        reports = {
            lane.number: self._report(lane, rows.outcomes[lane.assigned.task]) for lane in lanes if lane not in sent
        }
        if not epoch.committed:
            require_equal(list(reports.values()), epoch)
        if sent:
            reports |= self._publish_rest(sent, rows)
        if self._settings.transactional:
            offsets = {lane.transactional_id: reports[lane.number].marker_offset for lane in lanes}
            self._ahead.begin(self._spark, self._connection, {id_: at for id_, at in offsets.items() if at >= 0})
        return [reports[lane.number] for lane in lanes]

    def _publish_rest(self, lanes: list[Lane], rows: EpochRows) -> dict[int, LaneReport]:
        """Publish lanes in the driver, all at once, each with its marker."""
        spooled = {lane.number: SpooledLane(self._spark, self._kafka, self._settings) for lane in lanes}
        try:
            reports = {lane.number: spooled[lane.number].submit(lane, rows.of(lane.assigned.task)) for lane in lanes}
            wait(reports.values())  # also after an error: a lane that is closed leaves its transaction open
            return {number: report.result() for number, report in reports.items()}
        finally:
            for lane in spooled.values():
                lane.close()

    def discard(self) -> None:
        """Forget what was read ahead."""
        self._ahead.forget()

    def close(self) -> None:
        """End the thread that reads ahead."""
        self._ahead.close()

    def _newest_producers(self, epoch: SinkEpoch, lanes: tuple[Lane, ...]) -> dict[str, NewestProducer]:
        """Read the newest producer of each lane; step 1."""
        if not lanes or not self._settings.transactional:
            return {}
        offsets = {lane.transactional_id: lane.assigned.tail_offset for lane in lanes}
        newest = self._ahead.producers(self._spark, self._connection, offsets)
        require_job(epoch)
        return newest

    def _keeps_producers(self) -> bool:
        try:
            return self._ahead.version(self._spark, self._connection) >= EPOCH_PER_TRANSACTION
        except ProducerFailed as failure:
            raise failure.typed("Kafka did not describe its version", EpochFailed) from failure

    def _publishing(
        self,
        lanes: tuple[Lane, ...],
        newest: dict[str, NewestProducer],
        partitions: int,
        *,
        kept: bool,
        rehearsed: bool = False,
    ) -> TaskPlan:
        if not lanes:
            return TaskPlan.of_all("COUNT", partitions)
        first, settings = lanes[0], self._settings
        tasks = []
        for lane in sorted(lanes, key=lambda lane: lane.assigned.task):
            known = newest.get(lane.transactional_id, _UNKNOWN)
            tasks.append(
                TaskLane(
                    name=str(lane),
                    transactional_id=lane.transactional_id,
                    producer_id=known.producer,
                    producer_epoch=known.epoch,
                    newest_offset=lane.assigned.tail_offset,
                    log_end=lane.assigned.log_end,
                    log_partition=lane.assigned.log_partition,
                    marker=marker_head(lane.marker()),
                )
            )
        lane_pass = LanePass(
            topic=settings.topic,
            log_topic=first.identity.log_topic,
            transactional=settings.transactional,
            kept=kept,
            rehearsed=rehearsed,
            request_bytes=settings.limits.largest,
            buffer_bytes=settings.buffer_bytes,
            connection=self._connection,
            producer=producer_options(first, first.timeout_ms),
            patient=timeout_options(first, settings.longest_timeout_ms),
            patient_bytes=first.patient_bytes,
            topic_ids=dict(first.epoch.topic_ids),
            lanes=tuple(tasks),
        )
        rows: Rows = "PUBLISH"
        return TaskPlan((rows,) * partitions, lane_pass, points=faults.armed())

    def _report(self, lane: Lane, outcome: TaskOutcome) -> LaneReport:
        number, records, digest = lane.number, outcome.records, outcome.digest
        marker = lane.published_marker(lane.assigned.marker)
        if marker is not None:
            return LaneReport(
                number, "audited", records, digest, diverged=(marker.records, marker.digest) != (records, digest)
            )
        if not records:
            return LaneReport(number, "empty", 0, b"")
        if self._plan.rows[lane.assigned.task] == "COUNT":
            return LaneReport(number, "skipped", records, digest)
        offset, letters = outcome.marker_offset, outcome.dead_letters
        return LaneReport(number, "published", records, digest, marker_offset=offset, dead_letters=letters)
