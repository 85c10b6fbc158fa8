"""The publisher of a live query's steps, in the driver's JVM (Java: `clonos.StepPublisher`)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from clonos.spark.internals import jvm_of
from clonos.spark.live import Steps
from clonos_sinks.kafka.clients import JvmProducer, failures

decode_steps = msgspec.json.Decoder(Steps, strict=False).decode


class Lanes(msgspec.Struct, frozen=True, rename="camel"):
    """What a publisher learns about its lanes (Java: `clonos.StepMarkers.Lanes`)."""

    log_topic: str
    partitions: list[int]
    ends: list[int]
    heads: list[bytes]
    topic_ids: dict[str, str]
    began_millis: int


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
        self._java.open()

    def begin(
        self,
        producers: Sequence[JvmProducer],
        log_topic: str,
        partitions: Sequence[int],
        ends: Sequence[int],
        heads: Sequence[bytes],
        topic_ids: Mapping[str, str],
        timestamp_ms: int,
    ) -> None:
        """Begin an epoch: open producers, log partition, end of that partition and head of the markers of each lane."""
        # As text: Py4J would ask the JVM for each entry.
        lanes = Lanes(log_topic, list(partitions), list(ends), list(heads), dict(topic_ids), timestamp_ms)
        with failures(self._spark):
            self._java.begin([producer.java for producer in producers], msgspec.json.encode(lanes).decode())

    def drain(self) -> list[int]:
        """Wait until all rows are published; returns the offset of the newest marker of each lane, -1 without one."""
        with failures(self._spark):
            self._java.drain()
            return list(self._java.newestMarkers())

    def take(self) -> Steps:
        """Return what was published since the last call."""
        return decode_steps(self._java.take())

    def cut(self) -> None:
        """Let the tasks of the epoch end."""
        with contextlib.suppress(Exception):  # the JVM may have exited
            self._java.cut()

    def close(self) -> None:
        """End the publisher."""
        with contextlib.suppress(Exception):
            self._java.close()
