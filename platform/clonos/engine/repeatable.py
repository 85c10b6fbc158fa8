"""Whether a query's sources read the same again, in the same order, when an epoch is replayed.

Only Spark's Kafka connector is known to, and only with more than four partitions in its subscription: it orders
an epoch's ranges by a Scala map, which keeps insertion order up to four entries (the consumer's assignment the
first time, the sorted offset log in a replay) and goes by the hash from five on (design §5.0, ADR 1).
Both checks come before the first epoch is planned: the first time looks right, only a replay would show it.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame

from clonos.errors import SourceNotRepeatable

_ORDER_KEPT_FROM: Final = 5


class StreamingScan(NamedTuple):
    """A streaming source in a query, as the user wrote it; option names are in lower case."""

    format: str
    options: dict[str, str]

    def topics(self) -> list[str]:
        """The Kafka topics it names; empty for a pattern."""
        if "subscribe" in self.options:
            return [topic.strip() for topic in self.options["subscribe"].split(",")]
        return list(json.loads(self.options.get("assign", "{}")))


def streaming_scans(frame: DataFrame) -> list[StreamingScan]:
    """The streaming sources that `frame` reads."""
    leaves: Any = frame._jdf.queryExecution().analyzed().collectLeaves()
    found = []
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if not leaf.isStreaming():
            continue
        kind = leaf.getClass().getSimpleName()
        if kind == "StreamingRelationV2":
            given = dict(leaf.extraOptions().asCaseSensitiveMap())
            found.append(StreamingScan(leaf.sourceName(), {key.lower(): value for key, value in given.items()}))
        elif kind == "StreamingRelation":
            found.append(StreamingScan(leaf.dataSource().className(), {}))
        else:
            found.append(StreamingScan(kind, {}))
    return found


def check_sources(frame: DataFrame) -> None:
    """Refuse sources that are not known to be repeatable, before anything starts.

    Raises:
        SourceNotRepeatable: Naming the source and the way out.
    """
    for scan in streaming_scans(frame):
        if scan.format != "kafka":
            raise SourceNotRepeatable(
                f"The streaming source {scan.format!r} is not known to read the same again in a replay.",
                kept="nothing was started.",
                hint="bring its records into a Kafka topic and read that with clonos.source(spark, topic).",
            )
        if scan.options.get("failondataloss", "true").strip().lower() == "false":
            raise SourceNotRepeatable(
                "The Kafka source has failOnDataLoss=false: a replay would go on without records that are gone.",
                kept="nothing was started.",
                hint=f"leave the option out, or read with {_fixed(scan.topics())}.",
            )


def check_order(query: str, epoch: int, entry: str) -> None:
    """Refuse an epoch whose sources Spark would read in another order in a replay.

    Args:
        query: For the message.
        epoch: For the message.
        entry: Spark's offset-log entry of the epoch.

    Raises:
        SourceNotRepeatable: A source has too few partitions; the fix is named.
    """
    for line in entry.splitlines()[2:]:
        if line == "-":
            continue  # a source that has no offsets yet
        topics = {topic: len(partitions) for topic, partitions in json.loads(line).items()}
        count = sum(topics.values())
        if count < _ORDER_KEPT_FROM:
            raise SourceNotRepeatable(
                f"Epoch {epoch} of {query} reads {count} partitions of {', '.join(topics)}: a replay may read them in "
                "another order. Spark's Kafka connector keeps the order of more than four partitions only.",
                hint=f"read with {_fixed(list(topics))}, which pads the subscription with an empty topic.",
            )


def _fixed(topics: list[str]) -> str:
    names = ", ".join(repr(topic) for topic in topics) or "…"
    return f"clonos.source(spark, {names if len(topics) < 2 else f'[{names}]'})"
