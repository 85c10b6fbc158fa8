"""Publishes the output of a live query on a cluster: each task publishes its rows in steps (`docs/protocol.md`).

Each task has a publisher with `LANES` lanes of its own in its executor (Java: `clonos.StepTask`), whose markers hold
the offsets of the task's source partitions. The plan names the lanes of all tasks before a task opens a producer. So a
later claim opens all of them, which fences the executors that Spark has lost, before it reads the markers.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from clonos.errors import EpochFailed
from clonos.extend.lanes import require_job
from clonos.extend.sink import LaneReport, SinkEpoch
from clonos.kafka import java_options
from clonos.log.records import InputSlice, step_head
from clonos.settings import KafkaSettings
from clonos.spark.internals import jvm_of
from clonos.spark.lane_sink import EpochRows, TaskPlan
from clonos.spark.live import Steps
from clonos_sinks.kafka.clients import failures, newest_producers
from clonos_sinks.kafka.lane import LaneSettings, producer_options
from clonos_sinks.kafka.live import LANES, LINGER
from clonos_sinks.kafka.partitioned import TaskLane
from clonos_sinks.kafka.steps import decode_steps


class StepPass(msgspec.Struct, frozen=True, rename="camel", tag="clonos.StepPass", tag_field="class"):
    """How the tasks of a live epoch publish their steps."""

    run: str  # run id of the query
    name: str  # for messages
    interval_millis: int  # shortest pause after a step; 0: the default
    timestamp_millis: int  # the time of the epoch
    topic: str | None  # topic of rows without one
    log_topic: str  # the causal log
    request_bytes: int  # the largest batch that fits into a request
    buffer_bytes: int  # the largest batch that fits into a producer's buffer
    connection: dict[str, str]  # the options with which Kafka's Java clients connect
    producer: dict[str, str]  # further options of the producers
    # The ids of the topics that may have records of the steps, as far as they are known.
    topic_ids: dict[str, str]
    lanes: tuple[tuple[TaskLane, ...], ...]  # by Spark's partition index; empty: in a rehearsal


class TaskSteps:
    """The lanes of a live query on a cluster, as a `clonos.spark.live.LiveWriter`.

    Args:
        spark: The session.
        kafka: The Kafka cluster.
        settings: Those of the sink's lanes.
    """

    def __init__(self, spark: SparkSession, kafka: KafkaSettings, settings: LaneSettings) -> None:
        self._spark = spark
        self._settings = settings
        self._connection = java_options(kafka)
        self._tasks: Any = None  # a ``clonos.LiveTasks``
        self.topic = settings.topic
        self.run_id = ""  # of the query; set before the first epoch
        self.commit_interval_ms = 0  # set before the first epoch
        self.timestamp_ms = 0  # of the epoch; set before it begins

    @property
    def checks(self) -> Any:
        """No check: the tasks check their rows."""
        return None

    def frame(self, frame: DataFrame) -> DataFrame:
        """Return the sink's frame: the JVM converts its rows to records."""
        return frame

    def lanes(self, slices: tuple[InputSlice, ...]) -> tuple[InputSlice, ...]:
        """Return the lanes of the tasks, one task after the other."""
        return tuple(
            InputSlice("live", partition=task * LANES + lane, start=task, until=LANES)
            for task in range(len(slices))
            for lane in range(LANES)
        )

    def connect(self, job: str, query: str) -> None:
        """Do nothing: the executors connect."""

    def open(self) -> None:
        """Do nothing: the tasks open their producers."""

    def begin(self, epoch: SinkEpoch, partitions: int) -> TaskPlan:
        """Let the tasks open their lanes and publish (steps 1 and 2 of `clonos_sinks.kafka.partitioned`).

        Raises:
            Superseded: A newer owner claimed the job.
            BrokerUnavailable: Kafka did not answer.
        """
        lanes = self._settings.lanes(epoch)
        newest = newest_producers(self._spark, self._connection, [lane.transactional_id for lane in lanes])
        require_job(epoch)
        tasks = tuple(
            TaskLane(
                name=str(lane),
                transactional_id=lane.transactional_id,
                producer_id=newest[lane.transactional_id].producer,
                producer_epoch=newest[lane.transactional_id].epoch,
                newest_offset=lane.assigned.tail_offset,
                log_end=lane.assigned.log_end,
                log_partition=lane.assigned.log_partition,
                marker=step_head(lane.marker()),
            )
            for lane in lanes
        )
        by_task = tuple(tasks[task * LANES : (task + 1) * LANES] for task in range(partitions))
        producer = producer_options(lanes[0], lanes[0].timeout_ms) | LINGER
        return self._plan(epoch, partitions, by_task, producer)

    def rehearse(self, epoch: SinkEpoch, partitions: int) -> TaskPlan:
        """Let the tasks run live; they must have no rows."""
        return self._plan(epoch, partitions, (), {})

    def _plan(
        self, epoch: SinkEpoch, partitions: int, lanes: tuple[tuple[TaskLane, ...], ...], producer: dict[str, str]
    ) -> TaskPlan:
        if self._tasks is None:
            self._tasks = jvm_of(self._spark).clonos.LiveTasks(self.run_id)
        self._tasks.begin(partitions)
        steps = StepPass(
            run=self.run_id,
            name=f"The steps of {epoch.identity.query}",
            interval_millis=self.commit_interval_ms,
            timestamp_millis=self.timestamp_ms,
            topic=self.topic,
            log_topic=epoch.identity.log_topic,
            request_bytes=self._settings.limits.largest,
            buffer_bytes=self._settings.buffer_bytes,
            connection=dict(self._connection),
            producer=producer,
            topic_ids=dict(epoch.topic_ids),
            lanes=lanes,
        )
        return msgspec.structs.replace(TaskPlan.of_all("PUBLISH", partitions), lanes=steps)

    def publish(self, epoch: SinkEpoch, _rows: EpochRows) -> list[LaneReport]:
        """Report the newest markers of the tasks, which have published all rows; the records are counted by `take`.

        Raises:
            EpochFailed: A task has not reported its end.
        """
        try:
            with failures(self._spark):
                newest = list(self._tasks.newestMarkers())
        except Exception as failure:
            raise EpochFailed(f"The steps of {epoch.identity.query}: {failure}") from failure
        return [
            LaneReport(lane, "published" if offset >= 0 else "empty", 0, b"", marker_offset=offset)
            for lane, offset in enumerate(newest)
        ]

    def take(self) -> Steps:
        """Return what was published since the last call."""
        return decode_steps(self._tasks.take())

    def cut(self) -> None:
        """Let the tasks of the epoch end."""
        if self._tasks is not None:
            with contextlib.suppress(Exception):  # the JVM may have exited
                self._tasks.cut()

    def lost(self) -> str:
        """Return which task of the epoch is lost with its executor; empty: none is."""
        return str(self._tasks.lost()) if self._tasks is not None else ""

    def waiting(self) -> int:
        """Return how many tasks of the epoch have waited too long for a slot: nobody reads their partitions."""
        return int(self._tasks.waiting()) if self._tasks is not None else 0

    def discard(self) -> None:
        """Do nothing: a task closes its producers when it ends."""

    def close(self) -> None:
        """Refuse further reports of the query's tasks."""
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            with contextlib.suppress(Exception):  # the JVM may have exited
                tasks.close()
