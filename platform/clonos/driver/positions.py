"""Where a job's queries are in their sources: the newest commits of their checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from clonos.driver.checkpoint import CheckpointDirectory, progress_of
from clonos.driver.repeatable import streaming_scans
from clonos.driver.topic_ids import topic_ids
from clonos.errors import CheckpointMismatch
from clonos.extend.source import Progress
from clonos.jobs.context import JobContext, Query


class Positions:
    """Reads the checkpoints of a job's queries.

    Args:
        context: The defined job.
        directory: Returns the checkpoint of a query.
    """

    def __init__(self, context: JobContext, directory: Callable[[Query], CheckpointDirectory]) -> None:
        self._context = context
        self._directory = directory

    def committed(self) -> dict[str, int]:
        """Query → newest epoch that its checkpoint has committed."""
        epochs = {}
        for query in self._context.queries:
            commits = self._directory(query).commits()
            if commits:
                epochs[query.name] = commits[-1]
        return epochs

    def interrupted(self) -> set[str]:
        """Return the queries whose checkpoint has the offsets of an epoch that it has not committed."""
        queries = set()
        for query in self._context.queries:
            checkpoint = self._directory(query)
            if checkpoint.offsets()[-1:] > checkpoint.commits()[-1:]:
                queries.add(query.name)
        return queries

    def next_start(self, query: Query) -> Progress:
        """Return the start offsets of a query's next epoch: the end offsets of its newest commit."""
        checkpoint = self._directory(query)
        commits = checkpoint.commits()
        entry = checkpoint.read_offsets(commits[-1]) if commits else None
        return progress_of(entry) if entry else {}

    def source_topics(self) -> frozenset[str]:
        """Return the topics that the job's sources read now."""
        return frozenset[str]().union(*(source.topics() for source in self._context.sources))

    def read_by(self, query: Query) -> set[str]:
        """Return the topics that a query names, and the topics of its checkpoint's progress."""
        named = (topic for scan in streaming_scans(query.frame) for topic in scan.topics())
        return self.next_start(query).keys() | set(named)

    def topics(self) -> set[str]:
        """Return the topics that the job reads, topics of the checkpoints' progress included."""
        topics = set(self.source_topics())
        for query in self._context.queries:
            topics |= self.next_start(query).keys()
        return topics

    def deleted_topics(self, start: Progress) -> set[str]:
        """Return the topics of a checkpoint's progress that no source names and that do not exist any more."""
        unnamed = start.keys() - self.source_topics()
        return unnamed - topic_ids(self._context.kafka, unnamed).keys()

    def check_selected(self, query: Query, start: Progress) -> None:
        """Refuse a query whose sources no longer select a partition of the checkpoint's progress.

        Spark would report it as deleted. Deleted topics of a pattern are left to `finished_topics`.

        Raises:
            CheckpointMismatch: Partitions are not selected.
        """
        scans = streaming_scans(query.frame)
        selected = set[tuple[str, int]]().union(*(scan.selected(self._context.spark, start) for scan in scans))
        left: dict[str, list[int]] = {}
        for topic, offsets in start.items():
            for partition in offsets:
                if (topic, partition) not in selected:
                    left.setdefault(topic, []).append(partition)
        if left and any("subscribepattern" in scan.options for scan in scans):
            left = {topic: left[topic] for topic in topic_ids(self._context.kafka, left)}
        if left:
            names = ", ".join(f"{topic}{sorted(left[topic])}" for topic in sorted(left))
            raise CheckpointMismatch(
                f"The query {query.name} has read {names}, which its sources do not select any more.",
                kept="the checkpoint and the published records are unchanged.",
                hint="name them again: the older code continues from the checkpoint. To leave them out, start a job "
                "with a new name and a new output topic.",
            )

    def check_retained(self, start: Progress) -> None:
        """Refuse sources that no longer hold the records from `start` on.

        Raises:
            SourceOffsetsExpired: Records are missing.
        """
        for source in self._context.sources:
            source.check_retained(self._context.kafka, start)

    def of_sources(self, progress: Progress) -> Progress:
        """Return the progress in topics that the job's sources read now."""
        topics = self.source_topics()
        return {topic: offsets for topic, offsets in progress.items() if topic in topics}


def sink_topics(queries: Iterable[Query]) -> set[str]:
    """Return the topics that the sinks of queries name; only sinks that write one topic do."""
    topics = {getattr(query.sink, "topic", None) for query in queries}
    return {topic for topic in topics if isinstance(topic, str)}
