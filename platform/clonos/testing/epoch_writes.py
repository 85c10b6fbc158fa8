"""Writes single epochs to a sink as a driver does, without a job (`clonos.testing.sink_contract`)."""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import DataFrame, SparkSession

from clonos.carried_errors import uncarry_failure
from clonos.driver.sink_writers import writer_of
from clonos.errors import EpochFailed, EpochTooLarge
from clonos.extend.lanes import at_point, require_job
from clonos.extend.sink import LaneReport, Sink, SinkEpoch
from clonos.log.claiming import Ownership
from clonos.log.records import InputSlice
from clonos.spark.lane_sink import FORMAT, EpochRows, EpochWriter, TaskPlan, writing

_EPOCH: Final = "streaming.sql.batchId"  # Spark's local property with the number of an epoch


class EpochWrites:
    """Writes epochs to one start of a sink. A DataFrame that is not streaming is one epoch.

    Args:
        spark: The session.
        sink: The sink, after its `check`.
        own: The job's causal log, as claimed.
        in_doubt: The lanes of the first epoch, if they are not those that the sink chooses.

    Attributes:
        writer: The sink's writer.
    """

    def __init__(self, spark: SparkSession, sink: Sink, own: Ownership, in_doubt: tuple[InputSlice, ...] = ()) -> None:
        self._spark = spark
        self.writer: EpochWriter = writer_of(sink, spark, own.kafka, in_doubt, own)

    def write(self, frame: DataFrame, epoch: SinkEpoch) -> list[LaneReport]:
        """Write one epoch.

        Args:
            frame: The epoch's rows.
            epoch: The epoch.

        Returns:
            The reports of its lanes, by number.

        Raises:
            ClonosError: The sink, or a task, raised it. Every other exception of a task fails Spark's job.
        """
        attempt, context = _Attempt(self.writer, epoch), self._spark.sparkContext
        job, topic, checks = epoch.identity.job, self.writer.topic, self.writer.checks
        with writing(self._spark, attempt, job=job, topic=topic, checks=checks) as options:
            context.setLocalProperty(_EPOCH, str(epoch.identity.epoch))
            try:
                self.writer.frame(frame).write.format(FORMAT).mode("append").options(**options).save()
            except (Py4JJavaError, CapturedException) as failure:
                if attempt.failure is not None:
                    raise attempt.failure from None
                error = uncarry_failure(failure)
                if error is None:
                    raise
                if isinstance(error, EpochFailed | EpochTooLarge):
                    require_job(epoch)  # a takeover fences the producers of tasks
                raise error from failure
            finally:
                context.setLocalProperty(_EPOCH, None)  # type: ignore[arg-type]
        return attempt.reports


class _Attempt:
    """The committer of one epoch."""

    def __init__(self, writer: EpochWriter, epoch: SinkEpoch) -> None:
        self._writer = writer
        self._epoch = epoch
        self.reports: list[LaneReport] = []
        self.failure: BaseException | None = None

    def begin(self, _epoch: int, partitions: int) -> TaskPlan:
        try:
            return self._writer.begin(self._epoch, partitions)
        except BaseException as failure:
            self.failure = failure
            raise

    def commit(self, _epoch: int, rows: EpochRows) -> None:
        try:
            self.reports = self._writer.publish(self._epoch, rows)
        except BaseException as failure:
            self.failure = failure
            raise

    def abort(self, _epoch: int) -> None:
        self._writer.discard()

    def reach(self, point: str, task: int) -> None:
        at_point(point, self._epoch, self._epoch.lane_of(task))
