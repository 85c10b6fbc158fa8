"""Checks, before anything starts, that a query's sources read the same records in the same order in a replay.

Only `clonos.RepeatableKafka` does that: Spark's own Kafka source may read the partitions of an epoch in another order
(`docs/adr/0023-ordered-partitions.md`).
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession

from clonos.errors import SourceNotRepeatable
from clonos.extend.source import KAFKA_FORMAT, Progress
from clonos.spark.internals import analyzed_leaves, java_pattern

_SPARK_FORMAT: Final = "kafka"
_ISOLATION: Final = "kafka.isolation.level"


class StreamingScan(NamedTuple):
    """A streaming source of a query, with the user's options; option names are in lower case."""

    format: str
    options: dict[str, str]

    def topics(self) -> list[str]:
        """Return the Kafka topics of the subscription; empty for a pattern."""
        if "subscribe" in self.options:
            return [topic.strip() for topic in self.options["subscribe"].split(",")]
        return list(json.loads(self.options.get("assign", "{}")))

    def selected(self, spark: SparkSession, progress: Progress) -> set[tuple[str, int]]:
        """Return the partitions of `progress` that the subscription covers."""
        partitions = {(topic, partition) for topic, offsets in progress.items() for partition in offsets}
        if "assign" in self.options:
            assigned: dict[str, list[int]] = json.loads(self.options["assign"])
            return partitions & {(topic, partition) for topic, numbers in assigned.items() for partition in numbers}
        topics = set(self.topics())
        if "subscribepattern" in self.options:
            pattern = java_pattern(spark, self.options["subscribepattern"])
            topics = {topic for topic in progress if pattern.matcher(topic).matches()}
        return {(topic, partition) for topic, partition in partitions if topic in topics}


# A frame's plan never changes, and a takeover asks for its sources several times.
_scans: WeakKeyDictionary[DataFrame, list[StreamingScan]] = WeakKeyDictionary()


def streaming_scans(frame: DataFrame) -> list[StreamingScan]:
    """Return the streaming sources that `frame` reads."""
    if frame not in _scans:
        _scans[frame] = _read_scans(frame)
    return _scans[frame]


def _read_scans(frame: DataFrame) -> list[StreamingScan]:
    scans = []
    for leaf in analyzed_leaves(frame):
        if not leaf.isStreaming():
            continue
        kind = leaf.getClass().getSimpleName()
        if kind == "StreamingRelationV2":
            options = dict(leaf.extraOptions().asCaseSensitiveMap())
            scans.append(StreamingScan(leaf.sourceName(), {key.lower(): value for key, value in options.items()}))
        elif kind == "StreamingRelation":
            scans.append(StreamingScan(leaf.dataSource().className(), {}))
        else:
            scans.append(StreamingScan(kind, {}))
    return scans


def check_sources(frame: DataFrame) -> None:
    """Refuse sources that are not known to be repeatable, before anything starts.

    Raises:
        SourceNotRepeatable: A source is not repeatable; the error names it and the fix.
    """
    for scan in streaming_scans(frame):
        refusal = _refusal(scan)
        if refusal is not None:
            raise SourceNotRepeatable(refusal[0], kept="nothing was started.", hint=refusal[1])


def _refusal(scan: StreamingScan) -> tuple[str, str] | None:
    """Return what is wrong with a source, and the fix; None for a repeatable source."""
    names = ", ".join(repr(topic) for topic in scan.topics()) or "…"
    call = f"clonos.source(spark, {names if len(scan.topics()) < 2 else f'[{names}]'})"
    if scan.format == _SPARK_FORMAT:
        return (
            "Spark's Kafka source may read the partitions of an epoch in another order in a replay.",
            f"read with {call}; or keep your options, with .format({KAFKA_FORMAT!r}) and .option({_ISOLATION!r}, "
            "'read_committed').",
        )
    if scan.format != KAFKA_FORMAT:
        return (
            f"The streaming source {scan.format!r} is not known to read the same records in a replay.",
            "bring its records into a Kafka topic and read that with clonos.source(spark, topic).",
        )
    if scan.options.get("failondataloss", "true").strip().lower() == "false":
        return (
            "The Kafka source has failOnDataLoss=false: a replay would skip records that were deleted.",
            f"leave the option out, or read with {call}.",
        )
    if scan.options.get(_ISOLATION, "").strip().lower() != "read_committed":
        return (
            f"The Kafka source of {names} has no {_ISOLATION}=read_committed: it would read the records of aborted "
            "transactions as input.",
            f"set the option, or read with {call}.",
        )
    return None
