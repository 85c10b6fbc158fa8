"""The repeatable Kafka source: Spark's own connector with a fixed order of partitions and a long poll.

A replay reads the ranges of an epoch in the same order (`docs/adr/0023-ordered-partitions.md`). A query without input
waits at the broker and sends no other requests: Spark's own source is asked for its newest offsets a hundred times a
second. The Java side is `clonos.RepeatableKafka`, in ``java``.

- `source`: the class that a job names. `compaction`: refuses topics that may lose records before a replay.
"""

from clonos_connectors.kafka.source import KafkaSource

__all__ = ["KafkaSource"]
