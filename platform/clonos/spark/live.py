"""Live epochs: Spark's real-time mode, in which tasks read until the epoch is ended (Java: `clonos.LivePublisher`)."""

from __future__ import annotations

import json
from typing import Any, Final, Protocol, runtime_checkable

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from clonos.extend.source import Progress
from clonos.settings import KafkaSettings
from clonos.spark.executors import slots_of_executors
from clonos.spark.internals import jvm_of, task_slots
from clonos.spark.lane_sink import EpochWriter
from clonos.spark.session import is_local
from clonos.spark.source_streams import LiveTasks

_ENDLESS: Final = "365 days"  # the driver ends epochs, because the first one of a standby waits for its promotion
_ALLOWLIST: Final = "spark.sql.streaming.realTimeMode.allowlistCheck"
# Spark's commit-log entry of a query without state.
COMMIT: Final = 'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{}}'


class Steps(msgspec.Struct, frozen=True, rename="camel"):
    """What a publisher has published since its last report."""

    steps: int  # number of steps
    records: int  # number of records of the output
    dead_letters: int  # number of poison records among them
    longest_micros: int  # duration of the longest step, in microseconds
    latencies: dict[int, int]  # class of an end-to-end latency → number of input records
    next: Progress  # topic → partition → next offset that the tasks read
    time_millis: int  # time of the newest step, in milliseconds; 0: there is none


@runtime_checkable
class LiveWriter(EpochWriter, Protocol):
    """Publishes live epochs in steps."""

    run_id: str
    """``StreamingQuery.runId``; set before the first epoch."""
    commit_interval_ms: int
    """Shortest pause between two steps, in milliseconds; set before the first epoch."""
    timestamp_ms: int
    """The time of the next epoch; set before it begins."""

    def connect(self, job: str, query: str) -> None:
        """Connect the producers before the job is claimed, or keep them connected; this fences no producer."""

    def open(self) -> None:
        """Initialise the connected producers in the background, once the job is claimed. `begin` waits for them."""

    def take(self) -> Steps:
        """Return what was published since the last call."""

    def cut(self) -> None:
        """Let the tasks of the epoch end."""

    def lost(self) -> str:
        """Return which task of the epoch is lost with its executor; empty: none is."""

    def waiting(self) -> int:
        """Return how many tasks of the epoch have waited too long for a slot: nobody reads their partitions."""


@runtime_checkable
class LiveSink(Protocol):
    """A sink that can publish in steps."""

    def live_writer(self, spark: SparkSession, kafka: KafkaSettings) -> LiveWriter:
        """Create the writer of one start of a live query."""

    def epochs_because(self, spark: SparkSession, kafka: KafkaSettings) -> str:
        """Return why the sink cannot publish in steps; empty: it can."""


def tasks_of_epochs(spark: SparkSession, queries: int) -> LiveTasks:
    """Return the numbers of tasks of the next epoch of each live query of a job with `queries`.

    Executors whose tasks did not report in time do not count: their slots may be occupied.
    """
    if is_local(spark.sparkContext.master):
        return LiveTasks(most=max(1, task_slots(spark) // queries))
    silent = set(jvm_of(spark).clonos.LiveTasks.silentExecutors())
    slots = [slots for executor, slots in slots_of_executors(spark).items() if executor not in silent]
    most = max(1, sum(slots) // queries)
    return LiveTasks(max(1, min(len(slots), most)), most)


def offset_entry(spark: SparkSession, query: Any, timestamp_ms: int, offsets: Progress) -> str:
    """Return an entry of Spark's offset log for a running query of one source; `query` is the JVM's."""
    package = jvm_of(spark).org.apache.spark.sql.execution.streaming.checkpointing
    metadata = json.loads(package.OffsetSeqMetadata.apply(0, timestamp_ms, query.sparkSession().conf()).json())
    # Without a value a setting is null, which Spark would set at the next start.
    metadata["conf"] = {name: value for name, value in metadata["conf"].items() if value is not None}
    return "\n".join(["v1", json.dumps(metadata, separators=(",", ":")), source_line(offsets)])


def source_line(offsets: Progress) -> str:
    """Return the offsets of a Kafka source as Spark's offset log has them."""
    by_topic = {
        topic: {str(partition): next_ for partition, next_ in sorted(partitions.items())}
        for topic, partitions in sorted(offsets.items())
    }
    return json.dumps(by_topic, separators=(",", ":"))


def run_live(spark: SparkSession, writer: DataStreamWriter) -> DataStreamWriter:
    """Let a query run live, with other sources, sinks and operators than Spark's own: its interfaces are open.

    Spark reads the setting when an epoch begins, so it stays.
    """
    spark.conf.set(_ALLOWLIST, "false")
    return writer.outputMode("update").trigger(realTime=_ENDLESS)  # type: ignore[call-overload,no-any-return]
