"""The interface between the engine and a source (entry point group ``clonos.sources``)."""

from __future__ import annotations

from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from clonos.settings import KafkaSettings

# Topic → partition → next offset, as Spark's offset log has it.
Progress = dict[str, dict[int, int]]


class Source(Protocol):
    """What the engine asks of a source: input that is the same when an epoch is replayed."""

    def check(self, kafka: KafkaSettings) -> None:
        """Fail closed at start: the topics exist.

        Raises:
            ClonosError: With what to do.
        """

    def check_retained(self, kafka: KafkaSettings, progress: Progress) -> None:
        """Refuse to start from `progress` if the source no longer holds it.

        Raises:
            SourceOffsetsExpired: Naming the partitions.
        """

    def load(self, spark: SparkSession, kafka: KafkaSettings, job: str) -> DataFrame:
        """The streaming DataFrame, with a partition order that a replay repeats."""

    def topics(self) -> frozenset[str]:
        """The topics that users know of (no padding)."""

    def publish_progress(self, kafka: KafkaSettings, group: str, progress: Progress) -> None:
        """Show `progress` to Kafka lag tools as ordinary consumer-group offsets; for information only."""
