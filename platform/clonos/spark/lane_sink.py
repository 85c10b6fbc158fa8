"""The one road of all epochs to their sinks: Spark's own sink interface, with `clonos.LaneSink` on the Java side.

For each epoch the driver decides what every task does with its rows (`TaskPlan`): publish them as a lane, send them to
the driver's JVM, which spools them in memory and then on disk, or only count and compare them. An `EpochWriter` makes
that plan for its sink, and publishes what the tasks have not published. See docs/adr/0059-one-road-to-the-sink.md.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeGuard, runtime_checkable

import msgspec
from pyspark.sql import DataFrame, SparkSession

from clonos.carried_errors import carrying
from clonos.extend.sink import LaneReport, SinkEpoch
from clonos.log.records import InputSlice
from clonos.settings import KafkaSettings
from clonos.spark.internals import jvm_of, start_callbacks

FORMAT: Final = "clonos.LaneSink"
_OPTION: Final = "key"

Rows = Literal["PUBLISH", "SEND", "COUNT", "LIVE"]


class TaskPlan(msgspec.Struct, frozen=True, rename={"lanes": "pass"}):
    """What the tasks of an epoch do with their rows."""

    # By Spark's partition index. ``PUBLISH``: the task publishes its lane. ``SEND``: the driver gets the rows.
    # ``COUNT``: the rows are published; they are only counted and compared.
    # ``LIVE``: the `LivePublisher` of `live` gets the rows of each record as soon as they are computed.
    rows: tuple[Rows, ...]
    # How tasks publish: the sink's own class, whose tag names a `clonos.TaskPlan.Pass` in Java; None: no task does.
    lanes: msgspec.Struct | None = None
    # Whether the tasks of a local master report the points of the protocol to `Committer.reach`, in tests.
    points: bool = False
    live: str | None = None  # run id of a live query, whose tasks hand their rows to its `LivePublisher`
    ahead: int = 0  # the number of the epoch, less that of Spark's batch

    @classmethod
    def of_all(cls, rows: Rows, partitions: int) -> TaskPlan:
        """Return the plan in which all tasks do the same, and none publishes."""
        return cls((rows,) * partitions)


class TaskOutcome(msgspec.Struct, frozen=True, rename="camel"):
    """What a task did with its rows."""

    task: int  # Spark's partition index
    records: int  # number of its records
    digest: bytes  # multiset digest of the records, 16 bytes
    dead_letters: int  # number of poison records among them
    size: int  # size in bytes of the records that the driver got
    marker_offset: int  # offset of the lane's marker; -1 if the task wrote none


_outcomes = msgspec.json.Decoder(tuple[TaskOutcome, ...])


class EpochRows:
    """The rows of one epoch, all computed: what each task did, and the rows that the driver got.

    Args:
        epoch: The ``clonos.SpooledEpoch``.
    """

    def __init__(self, epoch: Any) -> None:
        self._epoch = epoch

    @cached_property
    def outcomes(self) -> tuple[TaskOutcome, ...]:
        """What the tasks did, by Spark's partition index."""
        return _outcomes.decode(self._epoch.outcomes())

    @property
    def size(self) -> int:
        """Size in bytes of the records that the driver got."""
        return sum(task.size for task in self.outcomes)

    @property
    def all(self) -> LaneRows:
        """The rows of all tasks."""
        records = sum(task.records for task in self.outcomes)
        letters = sum(task.dead_letters for task in self.outcomes)
        return LaneRows(self._epoch, -1, records, self.size, letters, self._epoch.digest())

    def of(self, task: int) -> LaneRows:
        """Return the rows of one task."""
        done = self.outcomes[task]
        return LaneRows(self._epoch, task, done.records, done.size, done.dead_letters, done.digest)

    def values(self, task: int) -> Iterator[bytes]:
        """Return the values of the rows that the driver got of a task, in order."""
        return map(bytes, self._epoch.values(task))  # a generator would close the JVM's iterator


class LaneRows(NamedTuple):
    """The rows of one lane, in the driver's JVM."""

    epoch: Any  # the ``clonos.SpooledEpoch``
    task: int  # Spark's partition index of the task that computed them; -1: those of all tasks
    records: int  # number of records
    size: int  # size of the records, in bytes
    dead_letters: int  # number of poison records among them
    digest: bytes  # multiset digest of the records, 16 bytes


class Committer(Protocol):
    """Plans and commits the epochs of one query. Spark's stream thread calls it."""

    def begin(self, epoch: int, partitions: int) -> TaskPlan:
        """Plan an epoch, after Spark has written ``offsets/epoch`` and before its tasks start.

        Args:
            epoch: Spark's batch id.
            partitions: Number of partitions of the epoch's rows.
        """

    def commit(self, epoch: int, rows: EpochRows) -> None:
        """Publish the rows that no task has published, and commit the epoch, before Spark writes ``commits/epoch``."""

    def abort(self, epoch: int) -> None:
        """Discard an epoch of which a task or the commit failed."""

    def reach(self, point: str, task: int) -> None:
        """Take a named point of the protocol that a task of a local master has reached, in tests."""


class EpochWriter(Protocol):
    """Brings the epochs of one start of a query to its sink."""

    @property
    def topic(self) -> str | None:
        """Topic of rows without one; None: each row names its topic."""

    @property
    def checks(self) -> Any:
        """A Java supplier of each epoch's `clonos.RecordCheck`; None: the rows that the driver gets are not checked."""

    def frame(self, frame: DataFrame) -> DataFrame:
        """Return the query that Spark runs for the sink's frame."""

    def lanes(self, slices: tuple[InputSlice, ...]) -> tuple[InputSlice, ...]:
        """Return the input of each lane, given that of each partition: `slices`, or `whole_epoch` of them."""

    def begin(self, epoch: SinkEpoch, partitions: int) -> TaskPlan:
        """Decide what the tasks do with their rows. An error fails the epoch."""

    def rehearse(self, epoch: SinkEpoch, partitions: int) -> TaskPlan:
        """Do as `begin`, for an epoch without rows and without an owner; ask Kafka nothing."""

    def publish(self, epoch: SinkEpoch, rows: EpochRows) -> list[LaneReport]:
        """Publish what no task has published; returns one report for each lane, by lane number.

        Raises:
            Superseded: A newer generation owns a lane.
            ConsistencyError: Publishing could duplicate or contradict published records.
            EpochFailed: This attempt failed; a new owner must replay the epoch.
        """

    def discard(self) -> None:
        """Close what earlier epochs left open: an epoch failed, or the lanes are claimed again."""

    def close(self) -> None:
        """Release everything after the query has ended."""


@runtime_checkable
class JvmSink(Protocol):
    """A sink to which the JVM writes: no row crosses into a Python worker."""

    def writer(self, spark: SparkSession, kafka: KafkaSettings, in_doubt: tuple[InputSlice, ...]) -> EpochWriter:
        """Create the writer of one start of the query.

        Args:
            spark: The session.
            kafka: The Kafka cluster.
            in_doubt: The lanes of the epoch in doubt, which the writer must have; empty: there is none.
        """

    def connect(self, spark: SparkSession, kafka: KafkaSettings) -> None:
        """Open connections that a takeover will use; it works without them."""


def writes_in_jvm(sink: object) -> TypeGuard[JvmSink]:
    """Return whether no Python worker publishes the sink's rows."""
    return isinstance(sink, JvmSink)


@contextlib.contextmanager
def writing(
    spark: SparkSession, committer: Committer, *, job: str, topic: str | None, checks: Any
) -> Iterator[dict[str, str]]:
    """Register the committer of one start of a query inside the context.

    Args:
        spark: The session.
        committer: Plans and commits the query's epochs.
        job: The job's name, for dead letters.
        topic: Topic of rows without one; None: each row names its topic.
        checks: A Java supplier of each epoch's `clonos.RecordCheck`; None: rows that the driver gets are not checked.

    Yields:
        The options of the query's writer, whose format is `FORMAT`.
    """
    jvm = jvm_of(spark)
    # Not the query's name: a late task of an earlier start must not get the epoch of this one.
    key = secrets.token_hex(8)
    start_callbacks(spark)
    spooled = jvm.clonos.SpooledQuery(
        _Callbacks(committer),
        job,
        topic,
        tempfile.gettempdir(),  # for rows that do not fit into memory
        checks,
    )
    jvm.clonos.LaneSink.register(key, spooled)
    try:
        yield {_OPTION: key}
    finally:
        jvm.clonos.LaneSink.unregister(key)


class _Callbacks:
    """The Java interface that Py4J calls."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer

    def begin(self, epoch: int, partitions: int) -> str:
        plan = self._committer.begin(epoch, partitions)
        if len(plan.rows) != partitions:
            self._committer.abort(epoch)
            raise AssertionError(f"a plan of {len(plan.rows)} tasks for {partitions} partitions")
        return msgspec.json.encode(plan).decode()

    def commit(self, epoch: int, rows: Any) -> None:
        self._committer.commit(epoch, EpochRows(rows))

    def abort(self, epoch: int) -> None:
        self._committer.abort(epoch)

    def reach(self, point: str, task: int) -> None:
        with carrying():
            self._committer.reach(point, task)

    class Java:
        implements: Final = ["clonos.EpochCommitter"]
