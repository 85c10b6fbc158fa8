"""`KafkaSource`: the source that a job names."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession

from clonos.documents import did_you_mean
from clonos.errors import BrokerUnavailable, SourceOffsetsExpired, SpecError, TopicMissing
from clonos.extend.source import KAFKA_FORMAT, Progress
from clonos.kafka import client_config, spark_options, unanswered, unlisted_topics_error
from clonos.partition_offsets import OffsetClient
from clonos.settings import KafkaSettings
from clonos.spark.internals import java_pattern
from clonos.spark.source_streams import longest_wait_ms
from clonos_connectors.kafka.compaction import check_compaction

_TIMEOUT_S: Final = 15.0
_LAST_COMMIT_MS: Final = 3000

# Options that would change an epoch in a replay or hide a loss, and those that the source sets.
_RESERVED: Final = {
    "subscribe": "name the topics in ctx.source",
    "subscribepattern": "use pattern= of ctx.source",
    "assign": "use assign= of ctx.source",
    "startingoffsets": "use starting=",
    "maxoffsetspertrigger": "use max_per_epoch=",
    "failondataloss": "lost input must stop the job",
    "includeheaders": "headers are always included",
    "kafka.bootstrap.servers": "use the settings CLONOS_KAFKA__…",
    "kafka.isolation.level": "records of aborted transactions are not input",
    "kafka.group.id": "the job's progress has its own group",
}

# The options of Spark's source that a stream may have, besides options of Kafka's consumer.
_OPTIONS: Final = (
    "minPartitions",
    "maxRecordsPerPartition",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
)


class KafkaSource:
    """Kafka topics as a streaming DataFrame: topics by name or pattern, or some of their partitions.

    Name exactly one of `topics`, `pattern` and `assign`.

    Args:
        topics: Names of topics.
        pattern: A Java regular expression for whole topic names. Topics that are created later are read from their
            beginning. The platform's own topics (``clonos.…``) never match.
        assign: Topic → partitions.
        starting: ``earliest``, ``latest`` or topic → partition → offset, for the job's first epoch.
        max_per_epoch: Maximum number of records in one epoch.
        compacted: Accept compacted topics: a replay may lack records that Kafka has removed.
        options: Further options of Spark's Kafka source.

    Raises:
        SpecError: Not exactly one of `topics`, `pattern` and `assign` is set, a value is invalid, or `options` has an
            option that the source sets itself.
    """

    def __init__(
        self,
        topics: tuple[str, ...] = (),
        *,
        pattern: str | None = None,
        assign: Mapping[str, tuple[int, ...]] | None = None,
        starting: str | Mapping[str, Mapping[int, int]] = "earliest",
        max_per_epoch: int | None = None,
        compacted: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> None:
        if [bool(topics), pattern is not None, assign is not None].count(True) != 1:
            raise SpecError("ctx.source takes exactly one of: topics, pattern=, assign=.")
        if not all(topics) or pattern == "" or (assign is not None and not (assign and all(assign.values()))):
            raise SpecError("ctx.source names no topic.", hint="an empty name, pattern or assignment reads nothing.")
        if isinstance(starting, str) and starting not in {"earliest", "latest"}:
            raise SpecError(f"starting={starting!r} is unknown.", hint="use earliest, latest or a map of offsets.")
        if max_per_epoch is not None and max_per_epoch < 1:
            raise SpecError(f"max_per_epoch={max_per_epoch} would read nothing.")
        for option in options or {}:
            if option.lower() in _RESERVED:
                raise SpecError(f"The source option {option!r} is reserved.", hint=_RESERVED[option.lower()] + ".")
            if not option.lower().startswith("kafka.") and option.lower() not in map(str.lower, _OPTIONS):
                raise SpecError(
                    f"Spark's Kafka source has no option {option!r}{did_you_mean(option, [*_OPTIONS, *_RESERVED])}",
                    hint=f"use {', '.join(_OPTIONS)}, or kafka.… for an option of Kafka's consumer.",
                )
        self._assigned = {topic: tuple(sorted(set(partitions))) for topic, partitions in (assign or {}).items()}
        self._topics = tuple(sorted({*topics, *self._assigned}))
        self._pattern = pattern
        self._starting = starting
        self._max_per_epoch = max_per_epoch
        self._compacted = compacted
        self._options = dict(options or {})
        self._progress: dict[str, _ProgressGroup] = {}
        self._offsets: OffsetClient | None = None

    def topics(self) -> frozenset[str]:
        """Return the topics that the source reads; empty for a pattern."""
        return frozenset(self._topics)

    def check(self, kafka: KafkaSettings) -> None:
        """Refuse topics and partitions that do not exist, for which Spark would wait forever, and compacted topics."""
        metadata = _metadata(kafka)
        missing = [name for name in self._topics if name not in metadata or metadata[name] is None]
        if missing:
            raise unlisted_topics_error(kafka, "source", missing, metadata)
        unknown = [
            f"{topic}[{partition}]"
            for topic, partitions in self._assigned.items()
            for partition in partitions
            if partition not in (metadata[topic] or ())
        ]
        if unknown:
            raise TopicMissing(
                f"The source partitions {', '.join(unknown)} do not exist.",
                kept="nothing was started.",
                hint="assign partitions that the topics have.",
            )
        if not self._compacted:
            check_compaction(kafka, self._topics)

    def load(self, spark: SparkSession, kafka: KafkaSettings, job: str) -> DataFrame:
        """Build the streaming DataFrame; refuses compacted topics of a pattern, as `check` does for other topics."""
        option, topics = self._subscription(spark)
        if self._pattern is not None and not self._compacted:
            check_compaction(kafka, self._matching(spark, kafka, _metadata(kafka)))
        starting = self._starting if isinstance(self._starting, str) else self._starting_json(spark, kafka)
        options = {
            **spark_options(kafka),
            # One-record latency 680 → 165 ms against the default of 500 ms.
            "kafka.fetch.max.wait.ms": "5",
            "kafka.isolation.level": "read_committed",
            **self._options,
            option: topics,
            "startingOffsets": starting,
            "includeHeaders": "true",
            "failOnDataLoss": "true",
            "longPollMs": str(longest_wait_ms(spark)),
        }
        if self._max_per_epoch is not None:
            options["maxOffsetsPerTrigger"] = str(self._max_per_epoch)
        return spark.readStream.format(KAFKA_FORMAT).options(**options).load()

    def _subscription(self, spark: SparkSession) -> tuple[str, str]:
        """Spark's option for the topics and its value."""
        if self._pattern is not None:
            return "subscribePattern", self._whole_pattern(spark)
        if self._assigned:
            return "assign", json.dumps(self._assigned)
        return "subscribe", ",".join(self._topics)

    def _whole_pattern(self, spark: SparkSession) -> str:
        """Return a pattern for names that match the user's pattern and are not the platform's."""
        pattern = self._pattern or ""
        whole = f"^(?!clonos\\.)(?:{pattern})$"
        for text in (pattern, whole):  # a pattern may be valid only alone, or only as a part
            try:
                java_pattern(spark, text)
            except (Py4JJavaError, IllegalArgumentException) as error:  # PySpark converts the Java exception
                reason = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
                raise SpecError(f"pattern={pattern!r} is not a regular expression: {reason}") from error
        return whole

    def _starting_json(self, spark: SparkSession, kafka: KafkaSettings) -> str:
        """Return the start offsets of all partitions as JSON; a partition without one starts at the earliest (-2)."""
        starting = self._starting if not isinstance(self._starting, str) else {}
        partitions = _metadata(kafka)
        topics: Iterable[str] = self._topics
        if self._pattern is not None:
            topics = self._matching(spark, kafka, partitions)
        offsets = {
            topic: {
                str(p): starting.get(topic, {}).get(p, -2)
                for p in self._assigned.get(topic) or partitions.get(topic) or ()
            }
            for topic in topics
        }
        return json.dumps(offsets)

    def _matching(self, spark: SparkSession, kafka: KafkaSettings, topics: Iterable[str]) -> list[str]:
        """Return the topics of the pattern."""
        matcher = java_pattern(spark, self._whole_pattern(spark))
        return _not_internal(kafka, [topic for topic in topics if matcher.matcher(topic).matches()])

    def _read(self, progress: Progress) -> Progress:
        """Return the progress of this source within a query's; for a pattern, all of it."""
        return {
            topic: partitions
            for topic, partitions in progress.items()
            if self._pattern is not None or topic in self._topics
        }

    def check_retained(self, kafka: KafkaSettings, progress: Progress) -> None:
        """Refuse to start from offsets that the source's partitions do not hold, or no longer hold."""
        next_offsets = {
            TopicPartition(topic, partition): offset
            for topic, partitions in self._read(progress).items()
            for partition, offset in partitions.items()
        }
        if not next_offsets:
            return
        self._offsets = self._offsets or OffsetClient(kafka, timeout_s=_TIMEOUT_S)
        begins, ends = self._offsets.bounds(next_offsets)
        lost = []
        for tp, offset in next_offsets.items():
            key = (tp.topic, tp.partition)
            if key not in begins or key not in ends:
                lost.append(f"{tp.topic}[{tp.partition}] needs {offset}, does not exist")
            elif not begins[key] <= offset <= ends[key]:
                lost.append(f"{tp.topic}[{tp.partition}] needs {offset}, has {begins[key]}..{ends[key]}")
        if lost:
            raise SourceOffsetsExpired(f"The source no longer holds the checkpoint's offsets: {'; '.join(lost)}.")

    def publish_progress(self, kafka: KafkaSettings, group: str, progress: Progress) -> None:
        """Commit `progress` to a consumer group without members, so that lag tools show the job."""
        if group not in self._progress:
            self._progress[group] = _ProgressGroup(kafka, group)
        self._progress[group].commit(self._read(progress))


class _ProgressGroup:
    """Commits the offsets of a group without members; asynchronously, because they are for information only."""

    def __init__(self, kafka: KafkaSettings, group: str) -> None:
        # The classic protocol: the new one sends a random member id, which brokers refuse for a group without members.
        self._consumer = Consumer(
            client_config(
                kafka,
                group_id=group,
                group_protocol="classic",
                enable_auto_commit=False,
                # At its end librdkafka waits for the coordinator of the group: 45 s by default, if Kafka is away or
                # refuses the group.
                session_timeout_ms=_LAST_COMMIT_MS,
                heartbeat_interval_ms=_LAST_COMMIT_MS // 3,
            )
        )
        self._lock = threading.Lock()

    def commit(self, progress: Progress) -> None:
        offsets = [
            TopicPartition(topic, partition, offset)
            for topic, partitions in progress.items()
            for partition, offset in partitions.items()
        ]
        with self._lock:
            try:
                if offsets:
                    self._consumer.commit(offsets=offsets, asynchronous=True)
                self._consumer.poll(0)
            except KafkaException:
                return


def _metadata(kafka: KafkaSettings) -> dict[str, list[int] | None]:
    try:
        topics = AdminClient(client_config(kafka)).list_topics(timeout=_TIMEOUT_S).topics
    except KafkaException as error:
        raise unanswered("Kafka did not answer", error.args[0]) from error
    return {name: None if topic.error else sorted(topic.partitions) for name, topic in topics.items()}


def _not_internal(kafka: KafkaSettings, topics: list[str]) -> list[str]:
    """`topics` without Kafka's internal topics, to which the connector never subscribes by pattern."""
    admin = AdminClient(client_config(kafka))  # a local variable, so that it exists until the futures are done
    try:
        descriptions = admin.describe_topics(TopicCollection(topics), request_timeout=_TIMEOUT_S)
        return [topic for topic, future in descriptions.items() if not future.result(2 * _TIMEOUT_S).is_internal]
    except TimeoutError as error:
        raise BrokerUnavailable(f"Kafka did not describe its topics in {2 * _TIMEOUT_S:g} s.") from error
    except KafkaException as error:
        raise unanswered("Kafka did not answer", error.args[0]) from error
