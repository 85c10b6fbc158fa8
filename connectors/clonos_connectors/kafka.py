"""The repeatable Kafka source: Spark's own connector, with its partition order made the same in a replay.

Spark's connector orders an epoch's ranges by a Scala map that keeps insertion order up to four entries:
the consumer's assignment the first time, the sorted JSON of the offset log in a replay. With five entries
or more the order is that of the hash, the same both times. So every source also subscribes to an empty
*padding topic* of the platform with five partitions; its empty ranges become no tasks. That holds for topics by
name, by pattern and for assigned partitions.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession

from clonos.errors import SourceOffsetsExpired, SpecError, TopicMissing
from clonos.kafka import client_config, spark_options, unanswered
from clonos.settings import KafkaSettings
from clonos.sources import Progress

PADDING_TOPIC: Final = "clonos.padding"
_PADDING_PARTITIONS: Final = 5
_TIMEOUT_S: Final = 15.0

# What would make an epoch something else in a replay, hide a loss, or be set by the source itself.
_RESERVED: Final = {
    "subscribe": "name the topics in ctx.source",
    "subscribepattern": "use pattern= of ctx.source",
    "assign": "use assign= of ctx.source",
    "startingoffsets": "use starting=",
    "maxoffsetspertrigger": "use max_per_epoch=",
    "failondataloss": "lost input must stop the job",
    "includeheaders": "headers are always there",
    "kafka.bootstrap.servers": "use the settings CLONOS_KAFKA__…",
    "kafka.group.id": "the job's progress has a group of its own",
}


class KafkaSource:
    """One or several topics as a streaming DataFrame: by name, by pattern, or some of their partitions.

    Args:
        topics: Their names.
        pattern: Instead of names: a Java regular expression that a topic's whole name matches. Topics that appear
            later are read from their beginning. The platform's own topics (``clonos.…``) never match.
        assign: Instead of names: topic → partitions.
        starting: ``earliest``, ``latest`` or topic → partition → offset, for the job's first epoch.
        max_per_epoch: So many records at the most in one epoch.
        options: Further options of Spark's Kafka source.

    Raises:
        SpecError: Not exactly one of the three, or an option that is not the user's to set.
    """

    def __init__(
        self,
        topics: tuple[str, ...] = (),
        *,
        pattern: str | None = None,
        assign: Mapping[str, tuple[int, ...]] | None = None,
        starting: str | Mapping[str, Mapping[int, int]] = "earliest",
        max_per_epoch: int | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        if [bool(topics), pattern is not None, assign is not None].count(True) != 1:
            raise SpecError("ctx.source takes exactly one of: topics, pattern=, assign=.")
        if not all(topics) or pattern == "" or (assign is not None and not (assign and all(assign.values()))):
            raise SpecError("ctx.source names no topic.", hint="an empty name, pattern or assignment reads nothing.")
        if isinstance(starting, str) and starting not in {"earliest", "latest"}:
            raise SpecError(f"starting={starting!r} is not known.", hint="use earliest, latest or a map of offsets.")
        if max_per_epoch is not None and max_per_epoch < 1:
            raise SpecError(f"max_per_epoch={max_per_epoch} would read nothing.")
        for option in options or {}:
            if option.lower() in _RESERVED:
                raise SpecError(f"The source option {option!r} is not free.", hint=_RESERVED[option.lower()] + ".")
        self._assigned = {topic: tuple(sorted(set(some))) for topic, some in (assign or {}).items()}
        self._topics = tuple(sorted({*topics, *self._assigned}))
        self._pattern = pattern
        self._starting = starting
        self._max_per_epoch = max_per_epoch
        self._options = dict(options or {})
        self._progress: dict[str, _ProgressGroup] = {}
        self._admin: AdminClient | None = None

    def topics(self) -> frozenset[str]:
        """The topics that users know of; none for a pattern."""
        return frozenset(self._topics)

    def check(self, kafka: KafkaSettings) -> None:
        """Refuse topics and partitions that do not exist (Spark would wait for them for ever)."""
        metadata = _metadata(kafka)
        missing = [name for name in self._topics if name not in metadata or metadata[name] is None]
        if missing:
            raise TopicMissing(
                f"The source topics {missing} do not exist.", kept="nothing was started.", hint="create them first."
            )
        unknown = [
            f"{topic}[{partition}]"
            for topic, some in self._assigned.items()
            for partition in some
            if partition not in (metadata[topic] or ())
        ]
        if unknown:
            raise TopicMissing(
                f"The source partitions {', '.join(unknown)} do not exist.",
                kept="nothing was started.",
                hint="assign partitions that the topics have.",
            )

    def load(self, spark: SparkSession, kafka: KafkaSettings, job: str) -> DataFrame:
        """The streaming DataFrame."""
        _ensure_padding(kafka)
        which, value = self._subscription(spark)
        starting = self._starting if isinstance(self._starting, str) else self._starting_json(spark, kafka)
        options = {
            **spark_options(kafka),
            # One-record latency 680 → 165 ms against the default of 500 ms.
            "kafka.fetch.max.wait.ms": "5",
            "kafka.isolation.level": "read_committed",
            **self._options,
            which: value,
            "startingOffsets": starting,
            "includeHeaders": "true",
            "failOnDataLoss": "true",
        }
        if self._max_per_epoch is not None:
            options["maxOffsetsPerTrigger"] = str(self._max_per_epoch)
        return spark.readStream.format("kafka").options(**options).load()

    def _subscription(self, spark: SparkSession) -> tuple[str, str]:
        """Spark's option for what is read, always with the padding."""
        if self._pattern is not None:
            return "subscribePattern", self._whole_pattern(spark)
        if self._assigned:
            padding = {PADDING_TOPIC: tuple(range(_PADDING_PARTITIONS))}
            return "assign", json.dumps({**self._assigned, **padding})
        return "subscribe", ",".join([*self._topics, PADDING_TOPIC])

    def _whole_pattern(self, spark: SparkSession) -> str:
        """The user's pattern for whole names that are not the platform's, or the padding."""
        own = self._pattern or ""
        whole = f"^(?:(?!clonos\\.)(?:{own})|{re.escape(PADDING_TOPIC)})$"
        for one in (own, whole):  # it may be complete by itself only, or as a part only
            try:
                _java_pattern(spark, one)
            except (Py4JJavaError, IllegalArgumentException) as error:  # PySpark has a name of its own for it
                said = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
                raise SpecError(f"pattern={own!r} is not a regular expression: {said}") from error
        return whole

    def _starting_json(self, spark: SparkSession, kafka: KafkaSettings) -> str:
        """Spark wants an offset for every partition; those not named start at the earliest (-2)."""
        given = self._starting if not isinstance(self._starting, str) else {}
        partitions = _metadata(kafka)
        topics: Iterable[str] = (*self._topics, PADDING_TOPIC)
        if self._pattern is not None:
            matcher = _java_pattern(spark, self._whole_pattern(spark))
            topics = _not_internal(kafka, [topic for topic in partitions if matcher.matcher(topic).matches()])
        offsets = {
            topic: {
                str(p): given.get(topic, {}).get(p, -2)
                for p in self._assigned.get(topic) or partitions.get(topic) or ()
            }
            for topic in topics
        }
        return json.dumps(offsets)

    def _read(self, progress: Progress) -> Progress:
        """What of a query's progress is this source's; with a pattern, all of it but the padding."""
        return {
            topic: partitions
            for topic, partitions in progress.items()
            if topic != PADDING_TOPIC and (self._pattern is not None or topic in self._topics)
        }

    def check_retained(self, kafka: KafkaSettings, progress: Progress) -> None:
        """Refuse to start from offsets that retention has deleted already."""
        wanted = {
            TopicPartition(topic, partition): offset
            for topic, partitions in self._read(progress).items()
            for partition, offset in partitions.items()
        }
        if not wanted:
            return
        lost = []
        for (tp, offset), bounds in zip(wanted.items(), self._bounds(kafka, list(wanted)), strict=True):
            if bounds is None:
                lost.append(f"{tp.topic}[{tp.partition}] needs {offset}, is gone")
            elif not bounds[0] <= offset <= bounds[1]:
                lost.append(f"{tp.topic}[{tp.partition}] needs {offset}, has {bounds[0]}..{bounds[1]}")
        if lost:
            raise SourceOffsetsExpired(f"The source no longer holds what the checkpoint needs: {'; '.join(lost)}.")

    def _bounds(self, kafka: KafkaSettings, wanted: list[TopicPartition]) -> list[tuple[int, int] | None]:
        """The offsets that each partition holds; None where it is gone."""
        asked_before = self._admin is not None
        admin = self._connected(kafka)
        first, end = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
        earliest = admin.list_offsets(dict.fromkeys(wanted, first), request_timeout=_TIMEOUT_S)
        latest = admin.list_offsets(dict.fromkeys(wanted, end), request_timeout=_TIMEOUT_S)
        found: list[tuple[int, int] | None] = []
        for low, high in zip(earliest.values(), latest.values(), strict=True):
            try:
                found.append((low.result().offset, high.result().offset))
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    # It goes by what it knew of the brokers for minutes, also when they were started again.
                    self._admin = None
                    if asked_before:
                        return self._bounds(kafka, wanted)
                    raise unanswered("The source's offsets cannot be read", error.args[0]) from error
                found.append(None)
        return found

    def _connected(self, kafka: KafkaSettings) -> AdminClient:
        """A client that knows the brokers: otherwise its first question about offsets may wait for three seconds."""
        if self._admin is None:
            admin = AdminClient(client_config(kafka))
            try:
                admin.list_topics(timeout=_TIMEOUT_S)
            except KafkaException as error:
                raise unanswered("The source's offsets cannot be read", error.args[0]) from error
            self._admin = admin
        return self._admin

    def publish_progress(self, kafka: KafkaSettings, group: str, progress: Progress) -> None:
        """Commit `progress` to a consumer group without members, so that lag tools show the job."""
        if group not in self._progress:
            self._progress[group] = _ProgressGroup(kafka, group)
        self._progress[group].commit(self._read(progress))


class _ProgressGroup:
    """Commits offsets of a group that nobody joins; asynchronously, because it is for information only."""

    def __init__(self, kafka: KafkaSettings, group: str) -> None:
        # The classic protocol: the new one sends a random member id, which a group without members refuses.
        self._consumer = Consumer(
            client_config(kafka, group_id=group, group_protocol="classic", enable_auto_commit=False)
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


def _java_pattern(spark: SparkSession, text: str) -> Any:
    """`text` as the connector will read it."""
    jvm: Any = spark._jvm
    return jvm.java.util.regex.Pattern.compile(text)


def _metadata(kafka: KafkaSettings) -> dict[str, list[int] | None]:
    try:
        topics = AdminClient(client_config(kafka)).list_topics(timeout=_TIMEOUT_S).topics
    except KafkaException as error:
        raise unanswered("Kafka did not answer", error.args[0]) from error
    return {name: None if known.error else sorted(known.partitions) for name, known in topics.items()}


def _not_internal(kafka: KafkaSettings, topics: list[str]) -> list[str]:
    """Without Kafka's own topics, which the connector never subscribes to by pattern."""
    admin = AdminClient(client_config(kafka))  # kept until it has answered
    try:
        told = admin.describe_topics(TopicCollection(topics), request_timeout=_TIMEOUT_S)
        return [topic for topic, answer in told.items() if not answer.result().is_internal]
    except KafkaException as error:
        raise unanswered("Kafka did not answer", error.args[0]) from error


def _ensure_padding(kafka: KafkaSettings) -> None:
    if _metadata(kafka).get(PADDING_TOPIC):
        return
    admin = AdminClient(client_config(kafka))
    future = admin.create_topics([NewTopic(PADDING_TOPIC, num_partitions=_PADDING_PARTITIONS)])[PADDING_TOPIC]
    try:
        future.result(_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise unanswered(f"The topic {PADDING_TOPIC} cannot be made", error.args[0]) from error
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        if len(_metadata(kafka).get(PADDING_TOPIC) or ()) == _PADDING_PARTITIONS:
            return
        admin.poll(0.02)
