"""Writers of sinks whose rows Python writes: Spark's tasks call the sink before they hand over to `clonos.LaneSink`."""

from __future__ import annotations

from pickle import PicklingError
from typing import Final, cast

from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame, SparkSession

from clonos.errors import EpochTooLarge, SpecError
from clonos.extend.lanes import (
    SINK_EPOCH,
    LaneOrders,
    LaneTask,
    MultisetDigest,
    PartTask,
    at_point,
    deferred_rows,
    encode_orders,
    lane_report,
    part_report,
    require_equal,
    require_job,
)
from clonos.extend.sink import Digest, LaneReport, Sink, SinkEpoch, WritesLanes, WritesParts
from clonos.log.claiming import Ownership
from clonos.log.records import EpochParts, InputSlice, whole_epoch
from clonos.settings import KafkaSettings
from clonos.spark.lane_sink import EpochRows, EpochWriter, TaskPlan, writes_in_jvm

_LONGEST_PAYLOADS: Final = 900 * 1024  # in a record of the log


def writer_of(
    sink: Sink,
    spark: SparkSession,
    kafka: KafkaSettings,
    in_doubt: tuple[InputSlice, ...] = (),
    own: Ownership | None = None,
) -> EpochWriter:
    """Create the writer of one start of a query to a sink.

    Args:
        sink: The sink.
        spark: The session.
        kafka: The Kafka cluster.
        in_doubt: The lanes of the epoch in doubt, which the writer must have; empty: there is none.
        own: The job's causal log, as claimed; None: for a rehearsal.
    """
    if writes_in_jvm(sink):
        return sink.writer(spark, kafka, in_doubt)
    if hasattr(sink, "write_part") and (sink.delivery == "atomic-epoch" or not hasattr(sink, "write_lane")):
        return PythonParts(cast(WritesParts, sink), spark, own)
    return PythonLanes(cast(WritesLanes, sink), spark)


class _PythonWriter:
    """What the writers of sinks in Python have in common."""

    topic = ""
    checks = None

    def __init__(self, sink: Sink, spark: SparkSession, task: LaneTask | PartTask) -> None:
        try:
            CloudPickleSerializer().dumps(task)  # type: ignore[no-untyped-call]
        except PicklingError as error:
            raise SpecError(
                f"The sink {sink.name!r} cannot be sent to Python workers: {error}.",
                hint="open connections and locks in write_lane or write_part, not in the sink's constructor.",
            ) from error
        self._task = task
        self._select = getattr(sink, "rows", None)
        self._context = spark.sparkContext

    def frame(self, frame: DataFrame) -> DataFrame:
        """Return the query whose tasks call the sink, and whose rows are their reports."""
        rows: DataFrame = self._select(frame) if self._select is not None else frame
        return rows.mapInArrow(self._task, self._task.schema)

    def rehearse(self, _epoch: SinkEpoch, partitions: int) -> TaskPlan:
        """Let the tasks send reports."""
        return TaskPlan.of_all("SEND", partitions)

    def discard(self) -> None:
        """Do nothing: nothing is open between epochs."""

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _order(self, orders: LaneOrders, partitions: int) -> TaskPlan:
        self._context.setLocalProperty(SINK_EPOCH, encode_orders(orders))
        return self.rehearse(orders.epoch, partitions)


class PythonLanes(_PythonWriter):
    """The writer of a sink with `write_lane`, which runs in a Python worker of each lane's task.

    In a replay of an epoch that earlier attempts published in part, the tasks compare the published lanes. The rows of
    the others go to the driver, which writes these lanes once the comparison is complete.

    Args:
        sink: The sink.
        spark: The session.
    """

    def __init__(self, sink: WritesLanes, spark: SparkSession) -> None:
        super().__init__(sink, spark, LaneTask(sink))
        self._sink = sink
        self._published: frozenset[int] = frozenset()
        self._deferred: frozenset[int] = frozenset()

    def lanes(self, slices: tuple[InputSlice, ...]) -> tuple[InputSlice, ...]:
        """Return one lane for each partition."""
        return slices

    def begin(self, epoch: SinkEpoch, partitions: int) -> TaskPlan:
        """Pass the epoch to the tasks, which send reports."""
        lanes = frozenset(lane.number for lane in epoch.lanes)
        self._published = frozenset(self._sink.published(epoch)) if epoch.identity.replay else frozenset()
        self._deferred = lanes - self._published if self._published and not epoch.committed else frozenset()
        return self._order(LaneOrders(epoch, self._deferred), partitions)

    def publish(self, epoch: SinkEpoch, rows: EpochRows) -> list[LaneReport]:
        """Return the reports of the tasks, and write the lanes that were deferred."""
        reports = {
            lane.number: lane_report(rows.values(lane.task))
            for lane in epoch.lanes
            if lane.number not in self._deferred
        }
        if self._published and not epoch.committed:
            require_equal(list(reports.values()), epoch)
        for lane in epoch.lanes:
            if lane.number in self._deferred:
                reports[lane.number] = self._sink.write_lane(epoch, lane, deferred_rows(rows.values(lane.task)))
        return [reports[lane.number] for lane in epoch.lanes]


class PythonParts(_PythonWriter):
    """The writer of a sink with `write_part` and one commit for each epoch.

    Args:
        sink: The sink.
        spark: The session.
        own: The job's causal log; None: for a rehearsal.
    """

    def __init__(self, sink: WritesParts, spark: SparkSession, own: Ownership | None) -> None:
        super().__init__(sink, spark, PartTask(sink))
        self._sink = sink
        self._own = own
        self._committed: Digest | None = None
        self._logged: EpochParts | None = None

    def lanes(self, slices: tuple[InputSlice, ...]) -> tuple[InputSlice, ...]:
        """Return one lane for all partitions."""
        return whole_epoch(slices)

    def begin(self, epoch: SinkEpoch, partitions: int) -> TaskPlan:
        """Pass the epoch to the tasks. If the target or the log has its rows, they are only counted and compared."""
        asks = epoch.identity.replay and bool(epoch.lanes)
        self._committed = self._sink.committed(epoch) if asks else None
        key = (epoch.identity.query, epoch.identity.epoch)
        self._logged = self._own.state.parts.get(key) if asks and self._own is not None else None
        counts = epoch.committed or self._committed is not None or self._logged is not None
        return self._order(LaneOrders(epoch, counts=counts), partitions)

    def publish(self, epoch: SinkEpoch, rows: EpochRows) -> list[LaneReport]:
        """Commit the parts, or compare their rows with those of an earlier attempt."""
        if not epoch.lanes:
            return []
        (lane,) = epoch.lanes
        parts = [part_report(rows.values(task)) for task in range(len(rows.outcomes))]
        total = MultisetDigest()
        for part in parts:
            total.add_all(part.records, part.digest)
        digest = Digest(total.records, total.value())
        logged = self._logged
        before = self._committed or (Digest(logged.records, logged.digest) if logged is not None else None)
        if before is not None:
            audited = LaneReport(lane.number, "audited", *_fields(digest), diverged=digest != before)
            if not epoch.committed:
                require_equal([audited], epoch)
                if self._committed is None and logged is not None:
                    self._commit(epoch, logged.payloads, before)  # an earlier attempt may have done it
            return [audited]
        if not digest.records:
            return [LaneReport(lane.number, "empty", 0, b"")]
        if epoch.committed:
            return [LaneReport(lane.number, "skipped", *_fields(digest))]
        self._commit(epoch, tuple(part.payload for part in parts), digest)
        return [LaneReport(lane.number, "published", *_fields(digest))]

    def _commit(self, epoch: SinkEpoch, payloads: tuple[bytes, ...], digest: Digest) -> None:
        (lane,) = epoch.lanes
        require_job(epoch)
        at_point("lane-decided", epoch, lane)
        if not self._sink.keeps_marker and self._logged is None and self._own is not None:
            self._log(
                EpochParts(self._own.owner, epoch.identity.query, epoch.identity.epoch, payloads, *_fields(digest))
            )
        at_point("lane-marked", epoch, lane)
        self._sink.commit(epoch, payloads, digest)
        at_point("lane-committed", epoch, lane)

    def _log(self, parts: EpochParts) -> None:
        assert self._own is not None
        if (size := sum(map(len, parts.payloads))) > _LONGEST_PAYLOADS:
            raise EpochTooLarge(
                f"The sink's payloads of epoch {parts.epoch} of {parts.query} have {size} bytes, more than 900 KiB.",
                hint="write fewer partitions, or return shorter payloads from write_part.",
            )
        with self._own.lock:
            self._own.state.take(self._own.control.append(parts), parts)


def _fields(digest: Digest) -> tuple[int, bytes]:
    return digest.records, digest.value
