"""Checks that a query's sources read the same records in the same order when an epoch is replayed.

Only Spark's Kafka connector is known to do that, and only with more than four partitions in its subscription. With
fewer, a replay may read an epoch's ranges in another order (`docs/adr/0001-padding-topic.md`). Both checks run before
an epoch is planned, because only a replay would show the difference.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from pyspark.sql import DataFrame

from clonos.errors import SourceNotRepeatable
from clonos.spark.internals import analyzed_leaves
from clonos.spark.long_polling import FORMAT, SPARK_FORMAT

_ORDER_KEPT_FROM: Final = 5


class StreamingScan(NamedTuple):
    """A streaming source of a query, with the user's options; option names are in lower case."""

    format: str
    options: dict[str, str]

    def topics(self) -> list[str]:
        """The Kafka topics of the subscription; empty for a pattern."""
        if "subscribe" in self.options:
            return [topic.strip() for topic in self.options["subscribe"].split(",")]
        return list(json.loads(self.options.get("assign", "{}")))


def streaming_scans(frame: DataFrame) -> list[StreamingScan]:
    """The streaming sources that `frame` reads."""
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
        if scan.format not in (SPARK_FORMAT, FORMAT):
            raise SourceNotRepeatable(
                f"The streaming source {scan.format!r} is not known to read the same records in a replay.",
                kept="nothing was started.",
                hint="bring its records into a Kafka topic and read that with clonos.source(spark, topic).",
            )
        if scan.options.get("failondataloss", "true").strip().lower() == "false":
            raise SourceNotRepeatable(
                "The Kafka source has failOnDataLoss=false: a replay would skip records that were deleted.",
                kept="nothing was started.",
                hint=f"leave the option out, or read with {_fixed(scan.topics())}.",
            )


def check_order(query: str, epoch: int, entry: str) -> None:
    """Refuse an epoch whose ranges (in `entry` of Spark's offset log) Spark would read in another order in a replay.

    Raises:
        SourceNotRepeatable: A source has too few partitions; the error names the fix.
    """
    for line in entry.splitlines()[2:]:
        if line == "-":
            continue  # a source without offsets so far
        topics = {topic: len(partitions) for topic, partitions in json.loads(line).items()}
        count = sum(topics.values())
        if count < _ORDER_KEPT_FROM:
            raise SourceNotRepeatable(
                f"Epoch {epoch} of {query} reads {count} partitions of {', '.join(topics)}: a replay may read them in "
                "another order. Spark's Kafka connector has a stable order only for more than four partitions.",
                hint=f"read with {_fixed(list(topics))}, which pads the subscription with an empty topic.",
            )


def _fixed(topics: list[str]) -> str:
    names = ", ".join(repr(topic) for topic in topics) or "…"
    return f"clonos.source(spark, {names if len(topics) < 2 else f'[{names}]'})"
