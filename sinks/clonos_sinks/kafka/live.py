"""Publishes the output of a live query in steps, each one transaction (`docs/protocol.md`, "A step").

The steps use `LANES` lanes in turn: a transaction right after a commit of the same producer waits at the broker until
that commit is complete. For each lane the driver opens a producer, which fences every earlier one, and then checks that
it still owns the lane, as in `clonos_sinks.kafka.spooled`. The producers are kept for many epochs.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession

from clonos import faults
from clonos.errors import BrokerUnavailable, EpochFailed
from clonos.extend.lanes import require_owner
from clonos.extend.sink import LaneReport, SinkEpoch, SinkLane
from clonos.kafka import java_options
from clonos.log.reading import SINGLE_RECORD_TRANSACTION
from clonos.log.records import EpochIdentity, InputSlice, Owner, step_head
from clonos.log.topic import log_topic
from clonos.settings import KafkaSettings
from clonos.spark.lane_sink import EpochRows, TaskPlan
from clonos.spark.live import Steps
from clonos_sinks.kafka.clients import JvmProducer, ProducerFailed
from clonos_sinks.kafka.lane import Lane, LaneSettings, producer_options
from clonos_sinks.kafka.steps import StepPublisher

LANES: Final = 3
_NO_OWNER: Final = Owner(0, 0, "standby")
LINGER: Final = {"linger.ms": "0"}  # a step is sent at once


class LiveLanes:
    """The lanes of a live query, as a `clonos.spark.lane_sink.EpochWriter`.

    Args:
        spark: The session.
        kafka: The Kafka cluster.
        settings: Those of the sink's lanes.
    """

    def __init__(self, spark: SparkSession, kafka: KafkaSettings, settings: LaneSettings) -> None:
        self._spark = spark
        self._settings = settings
        self._kafka = kafka
        self._connection = java_options(kafka)
        self.topic = settings.topic
        self._publisher: StepPublisher | None = None
        self._producers: dict[int, JvmProducer] = {}  # by lane
        self._opening: dict[int, Future[None]] = {}  # by lane: an init that began before the first epoch
        self._ends: list[int] = []
        self.run_id = ""  # of the query; set before the first epoch
        self.commit_interval_ms = 0  # set before the first epoch
        self.timestamp_ms = 0  # of the epoch; set before it begins

    @property
    def checks(self) -> Any:
        """A Java supplier of each epoch's ``clonos.TopicCheck``."""
        return self._settings.checks(self._spark, self._connection)

    def frame(self, frame: DataFrame) -> DataFrame:
        """Return the sink's frame: the JVM converts its rows to records."""
        return frame

    def lanes(self, _slices: tuple[InputSlice, ...]) -> tuple[InputSlice, ...]:
        """Return the lanes, which have the steps in turn."""
        return tuple(InputSlice("live", partition=lane, until=LANES) for lane in range(LANES))

    def connect(self, job: str, query: str) -> None:
        """Connect the producers before the job is claimed, or keep them connected; this fences no producer."""
        identity = EpochIdentity(job, log_topic(job), query, 0, _NO_OWNER, replay=False)
        lanes = [SinkLane(lane, 0, input_, lane) for lane, input_ in enumerate(self.lanes(()))]
        topics = list(filter(None, (self.topic, identity.log_topic)))
        for lane in self._settings.lanes(SinkEpoch(identity, self._kafka, tuple(lanes))):
            for topic in topics:
                self._producer(lane).connect(topic)

    def open(self) -> None:
        """Initialise the connected producers in the background, once the job is claimed. `begin` waits for them."""
        pool = ThreadPoolExecutor(LANES, "clonos-live")
        self._opening = {lane: pool.submit(producer.init) for lane, producer in list(self._producers.items())}
        pool.shutdown(wait=False)

    def _producer(self, lane: Lane) -> JvmProducer:
        """Return the lane's producer, which fences none before its `JvmProducer.init`."""
        known = self._producers.get(lane.number)
        if known is not None:
            return known
        name = lane.transactional_id
        options = self._connection | producer_options(lane, lane.timeout_ms) | LINGER
        created = JvmProducer(self._spark, options | {"client.id": name, "transactional.id": name})
        kept = self._producers.setdefault(lane.number, created)  # a promotion may overlap a `connect`
        if kept is not created:
            created.close()
        return kept

    def begin(self, epoch: SinkEpoch, partitions: int) -> TaskPlan:
        """Open the lanes, unless an earlier epoch did, and let the tasks hand their rows to the publisher.

        Raises:
            Superseded: A newer generation owns a lane.
            EpochFailed: A lane could not be opened.
        """
        lanes = self._settings.lanes(epoch)
        if self._publisher is None:
            self._open(lanes)
        assert self._publisher is not None
        try:
            self._publisher.begin(
                [self._producers[lane.number] for lane in lanes],
                epoch.identity.log_topic,
                [lane.assigned.log_partition for lane in lanes],
                self._ends,
                [step_head(lane.marker()) for lane in lanes],
                epoch.topic_ids,
                self.timestamp_ms,
            )
        except ProducerFailed as failure:
            raise failure.typed(f"The steps of {epoch.identity.query}", EpochFailed) from failure
        plan = TaskPlan.of_all("LIVE", partitions)
        return msgspec.structs.replace(plan, points=faults.armed(), live=self.run_id)

    def _open(self, lanes: tuple[Lane, ...]) -> None:
        def open_lane(lane: Lane) -> None:
            try:
                if (opening := self._opening.pop(lane.number, None)) is not None:
                    opening.result()
                else:
                    self._producer(lane).init()
            except ProducerFailed as failure:
                what = f"No transaction could be opened as {lane.transactional_id}"
                raise failure.typed(what, BrokerUnavailable) from failure

        with ThreadPoolExecutor(len(lanes), "clonos-live") as pool:
            list(pool.map(open_lane, lanes))
        self._ends = []
        for lane in lanes:
            tail = require_owner(lane.epoch, lane.assigned)
            self._ends.append(max(tail.end if tail else -1, lane.assigned.log_end))
        identity = lanes[0].identity
        name = f"The steps of {identity.query}"
        self._publisher = StepPublisher(self._spark, self.run_id, name, self.commit_interval_ms)

    def rehearse(self, _epoch: SinkEpoch, partitions: int) -> TaskPlan:
        """Let the tasks run live; they must have no rows."""
        self._publisher = StepPublisher(self._spark, self.run_id, "The rehearsal", self.commit_interval_ms)
        self._publisher.begin((), "", (), (), (), {}, 0)
        return msgspec.structs.replace(TaskPlan.of_all("LIVE", partitions), live=self.run_id)

    def publish(self, epoch: SinkEpoch, _rows: EpochRows) -> list[LaneReport]:
        """Wait until all rows of the epoch are published; the records are counted by `take`.

        Raises:
            EpochFailed: A step failed, or its outcome is unknown: the next claim reads the markers.
        """
        assert self._publisher is not None
        try:
            newest = self._publisher.drain()
        except ProducerFailed as failure:
            raise failure.typed(f"The steps of {epoch.identity.query}", EpochFailed) from failure
        self._ends = [
            end if offset < 0 else offset + SINGLE_RECORD_TRANSACTION
            for offset, end in zip(newest, self._ends, strict=True)
        ]
        return [
            LaneReport(lane, "published" if offset >= 0 else "empty", 0, b"", marker_offset=offset)
            for lane, offset in enumerate(newest)
        ]

    def take(self) -> Steps:
        """Return what was published since the last call."""
        assert self._publisher is not None
        return self._publisher.take()

    def cut(self) -> None:
        """Let the tasks of the epoch end."""
        if self._publisher is not None:
            self._publisher.cut()

    def lost(self) -> str:
        """Return an empty text: all tasks are in this JVM."""
        return ""

    def waiting(self) -> int:
        """Return 0: the tasks have slots of this JVM."""
        return 0

    def discard(self) -> None:
        """Close the publisher and its producers; the next epoch opens new ones."""
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()
        while self._producers:
            self._producers.popitem()[1].close()
        wait(self._opening.values())  # a late init would fence the next producer
        self._opening.clear()

    def close(self) -> None:
        """Release the lanes after the query has ended."""
        self.discard()
