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
4. Once the task has computed all of its rows, it begins the transaction, sends rows and marker, and commits. Before the
   commit it compares the marker's offset with the end of the log that the driver knows (`clonos.LogGap`).
5. After any error the epoch fails. A new claim opens every lane, which ends the transactions, and reads the markers.

The task's side is in Java (`clonos.LaneTask`).
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final, Literal

import msgspec
from pyspark.sql import DataFrame

from clonos import faults
from clonos.errors import EpochFailed, EpochTooLarge
from clonos.extend.lanes import require_job
from clonos.extend.sink import LaneReport, SinkEpoch
from clonos.kafka import java_options
from clonos.log.records import marker_head
from clonos.spark.kafka_clients import NewestProducer, ProducerFailed
from clonos.spark.partition_lanes import LanePass, TaskLane, TaskOutcome, write_lanes
from clonos_sinks.kafka.lane import EPOCH_PER_TRANSACTION, Lane, buffer_bytes, producer_options, timeout_options
from clonos_sinks.kafka.read_ahead import ReadAhead

_UNKNOWN: Final = NewestProducer(-1, -1)


class PartitionedEpoch:
    """One attempt at an epoch with a lane for each partition.

    Args:
        epoch: The epoch.
        lanes: Its lanes, by number.
        topic: Topic of rows without one.
        ahead: What was read of the lanes since the last epoch.
    """

    def __init__(self, epoch: SinkEpoch, lanes: tuple[Lane, ...], topic: str | None, ahead: ReadAhead) -> None:
        self._epoch = epoch
        self._lanes = lanes
        self._topic = topic
        self._ahead = ahead
        self._published = {
            lane.number: marker for lane in lanes if (marker := lane.published_marker(lane.assigned.marker))
        }

    @property
    def published(self) -> Set[int]:
        """The lanes that an earlier attempt published."""
        return self._published.keys()

    def run(self, frame: DataFrame, mode: Literal["publish", "audit"]) -> list[LaneReport]:
        """Run one pass over the rows.

        Args:
            frame: The rows, with one partition for each lane.
            mode: ``publish`` publishes the lanes that are not published; ``audit`` publishes nothing. Both compare the
                rows of published lanes with their markers.

        Returns:
            The reports, by lane number.

        Raises:
            Superseded: A newer owner claimed the job.
            EpochFailed: A lane was not published.
        """
        if self._epoch.dead_letter_topic:
            frame = frame.drop("topic", "partition")
        due = [lane for lane in self._lanes if mode == "publish" and lane.number not in self._published]
        newest = self._newest_producers(frame, due)
        try:
            outcomes = write_lanes(frame, self._pass(frame, due, newest), self._reach if faults.armed() else None)
        except BaseException as error:
            self._ahead.forget()
            if not isinstance(error, EpochFailed | EpochTooLarge):
                raise
            require_job(msgspec.structs.replace(self._epoch, plan_offset=-1))  # a takeover fences the producers
            if isinstance(error, EpochTooLarge) and not self._epoch.attempt:
                raise EpochFailed(error.what) from error  # the next attempt has the longest time
            raise
        by_task = {outcome.task: outcome for outcome in outcomes}
        if newest:
            offsets = {lane.transactional_id: by_task[lane.assigned.task].marker_offset for lane in due}
            committed = {name: offset for name, offset in offsets.items() if offset >= 0}
            self._ahead.begin(frame.sparkSession, java_options(self._epoch.kafka), committed)
        return [self._report(lane, by_task[lane.assigned.task], lane in due) for lane in self._lanes]

    def _newest_producers(self, frame: DataFrame, due: list[Lane]) -> dict[str, NewestProducer]:
        """The newest producer of each lane that is due; step 1."""
        if not due or not due[0].transactional:
            return {}
        offsets = {lane.transactional_id: lane.assigned.tail_offset for lane in due}
        newest = self._ahead.producers(frame.sparkSession, java_options(self._epoch.kafka), offsets)
        require_job(self._epoch)
        return newest

    def _pass(self, frame: DataFrame, due: list[Lane], newest: dict[str, NewestProducer]) -> LanePass:
        first, identity, connection = self._lanes[0], self._epoch.identity, java_options(self._epoch.kafka)
        kept = False
        if newest:
            try:
                kept = self._ahead.version(frame.sparkSession, connection) >= EPOCH_PER_TRANSACTION
            except ProducerFailed as failure:
                raise failure.typed("Kafka did not describe its version", EpochFailed) from failure
        tasks = []
        for lane in sorted(self._lanes, key=lambda lane: lane.assigned.task):
            known = newest.get(lane.transactional_id, _UNKNOWN)
            tasks.append(
                TaskLane(
                    str(lane),
                    lane in due,
                    lane.transactional_id,
                    known.producer,
                    known.epoch,
                    lane.assigned.tail_offset,
                    lane.assigned.log_end,
                    lane.assigned.log_partition,
                    marker_head(lane.marker()),
                )
            )
        return LanePass(
            identity.job,
            identity.epoch,
            self._epoch.dead_letter_topic or self._topic,
            identity.log_topic,
            first.transactional,
            kept,
            first.limits.largest,
            buffer_bytes(first.limits),
            connection,
            producer_options(first, first.timeout_ms),
            timeout_options(first, first.longest_timeout_ms),
            first.patient_bytes,
            dict(self._epoch.topic_ids),
            tuple(tasks),
        )

    def _report(self, lane: Lane, outcome: TaskOutcome, due: bool) -> LaneReport:
        marker = self._published.get(lane.number)
        if marker is not None:
            same = (marker.records, marker.digest) == (outcome.records, outcome.digest)
            return LaneReport(lane.number, "audited", outcome.records, outcome.digest, diverged=not same)
        if not outcome.records:
            return LaneReport(lane.number, "empty", 0, b"")
        if not due:
            return LaneReport(lane.number, "skipped", outcome.records, outcome.digest)
        return LaneReport(
            lane.number,
            "published",
            outcome.records,
            outcome.digest,
            marker_offset=outcome.marker_offset,
            dead_letters=outcome.dead_letters,
        )

    def _reach(self, point: str, task: int) -> None:
        next(lane for lane in self._lanes if lane.assigned.task == task).at_point(point)
