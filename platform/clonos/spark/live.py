"""Live epochs: Spark's real-time mode, in which tasks read until the epoch is ended (Java: `clonos.StepPublisher`)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import msgspec
from pyspark.sql import SparkSession

from clonos.extend.source import Progress
from clonos.settings import KafkaSettings
from clonos.spark.internals import jvm_of
from clonos.spark.kafka_clients import JvmProducer, failures
from clonos.spark.lane_sink import EpochWriter

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


_steps = msgspec.json.Decoder(Steps, strict=False)
_progress = msgspec.json.Decoder(Progress, strict=False)


class StepPublisher:
    """Publishes the rows of one run of a live query, in the driver's JVM. Its methods raise `ProducerFailed`.

    Args:
        spark: The session.
        run_id: ``StreamingQuery.runId``.
        name: For messages.
        interval_ms: Shortest pause between two steps, in milliseconds.
    """

    def __init__(self, spark: SparkSession, run_id: str, name: str, interval_ms: int) -> None:
        self._spark = spark
        self._java: Any = jvm_of(spark).clonos.StepPublisher(run_id, name, interval_ms)

    def begin(
        self,
        producers: Sequence[JvmProducer],
        log_topic: str,
        partitions: Sequence[int],
        ends: Sequence[int],
        heads: Sequence[bytes],
        topic_ids: Mapping[str, str],
    ) -> None:
        """Begin an epoch: open producers, log partition, end of that partition and head of the markers of each lane."""
        with failures(self._spark):
            self._java.begin(
                [producer.java for producer in producers],
                log_topic,
                list(partitions),
                list(ends),
                [bytearray(head) for head in heads],
                dict(topic_ids),
            )

    def drain(self) -> list[int]:
        """Wait until all rows are published; returns the offset of the newest marker of each lane, -1 without one."""
        with failures(self._spark):
            self._java.drain()
            return list(self._java.newestMarkers())

    def take(self) -> Steps:
        """Return what was published since the last call."""
        return _steps.decode(self._java.take())

    def cut(self) -> None:
        """Let the tasks of the epoch end."""
        with contextlib.suppress(Exception):  # the JVM may have exited
            self._java.cut()

    def close(self) -> None:
        """End the publisher."""
        with contextlib.suppress(Exception):
            self._java.close()


class LiveWriter(EpochWriter, Protocol):
    """Publishes live epochs in steps."""

    run_id: str
    """``StreamingQuery.runId``; set before the first epoch."""
    commit_interval_ms: int
    """Shortest pause between two steps, in milliseconds; set before the first epoch."""

    def take(self) -> Steps:
        """Return what was published since the last call."""

    def cut(self) -> None:
        """Let the tasks of the epoch end."""


@runtime_checkable
class LiveSink(Protocol):
    """A sink that can publish in steps."""

    def live_writer(self, spark: SparkSession, kafka: KafkaSettings) -> LiveWriter:
        """Create the writer of one start of a live query."""

    def epochs_because(self, spark: SparkSession, kafka: KafkaSettings) -> str:
        """Return why the sink cannot publish in steps; empty: it can."""


def first_offsets(spark: SparkSession, run_id: str) -> Progress:
    """Return the offsets at which the newest live epoch of a running query begins: topic → partition → offset."""
    return _progress.decode(jvm_of(spark).clonos.RepeatableKafka.liveStarts(run_id))


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


def allow_operators(spark: SparkSession) -> None:
    """Let live queries use other sources, sinks and operators than Spark's own, although its interfaces are open.

    Spark reads the setting when an epoch begins, so it stays.
    """
    spark.conf.set(_ALLOWLIST, "false")
