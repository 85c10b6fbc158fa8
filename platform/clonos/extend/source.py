"""The interface between the driver and a source (entry point group ``clonos.sources``).

The driver logs the range of each epoch in its plan before the first task starts. A replay reads the same range, as in
Flink's snapshots: the input must be repeatable from logged offsets (Carbone et al., "Lightweight Asynchronous Snapshots
for Distributed Dataflows", 2015).
"""

from __future__ import annotations

from typing import Final, Protocol

from pyspark.sql import DataFrame, SparkSession

from clonos.settings import KafkaSettings

KAFKA_FORMAT: Final = "clonos.RepeatableKafka"
"""Spark's format of the repeatable Kafka source. Streams of other formats are refused."""

Progress = dict[str, dict[int, int]]
"""Topic → partition → next offset, as in Spark's offset log."""


class Source(Protocol):
    """The interface of a source: it returns the same records, in the same partitions and order, when an epoch is
    replayed.

    The class is called with the topics and the keyword arguments of `clonos.JobContext.source`. Example:
    `clonos_connectors.kafka.KafkaSource`.
    """

    def check(self, kafka: KafkaSettings) -> None:
        """Check before the job starts that the input exists; Spark would wait for a missing topic without an error.

        Args:
            kafka: The Kafka cluster.

        Raises:
            TopicMissing: A topic or partition does not exist.
            ClonosError: The input cannot be read.
        """

    def check_retained(self, kafka: KafkaSettings, progress: Progress) -> None:
        """Refuse to start from offsets that the source no longer holds. Several threads may call it at once.

        Args:
            kafka: The Kafka cluster.
            progress: The next offsets to read, from the query's checkpoint.

        Raises:
            SourceOffsetsExpired: The source lacks some of them. The error names the partitions.
        """

    def load(self, spark: SparkSession, kafka: KafkaSettings, job: str) -> DataFrame:
        """Build the streaming DataFrame.

        Args:
            spark: The Spark session.
            kafka: The Kafka cluster.
            job: The job's name.

        Returns:
            The DataFrame. A replay must get the same partitions in the same order.
        """

    def topics(self) -> frozenset[str]:
        """Return the topics that the source reads, without the platform's own; empty if they may change, as with a
        pattern.
        """

    def publish_progress(self, kafka: KafkaSettings, group: str, progress: Progress) -> None:
        """Publish `progress` for Kafka lag tools, as offsets of a consumer group. For information only.

        Args:
            kafka: The Kafka cluster.
            group: The consumer group.
            progress: The next offsets after the last committed epoch.
        """
