"""The repeatable Kafka source: Spark's own connector, with its partition order made the same in a replay.

Spark's connector orders an epoch's ranges by a Scala map that keeps insertion order up to four entries:
the consumer's assignment the first time, the sorted JSON of the offset log in a replay. With five entries
or more the order is that of the hash, the same both times. So every source also subscribes to an empty
*padding topic* of the platform with five partitions; its empty ranges become no tasks.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from pyspark.sql import DataFrame, SparkSession

from clonos.errors import BrokerUnavailable, SourceOffsetsExpired, SpecError, TopicMissing
from clonos.kafka import client_config, spark_options
from clonos.settings import KafkaSettings
from clonos.sources import Progress

PADDING_TOPIC: Final = "clonos.padding"
_PADDING_PARTITIONS: Final = 5
_TIMEOUT_S: Final = 15.0

# What would make an epoch something else in a replay, hide a loss, or be set by the source itself.
_RESERVED: Final = {
    "subscribe": "name the topics in ctx.source",
    "subscribepattern": "name the topics in ctx.source",
    "assign": "name the topics in ctx.source",
    "startingoffsets": "use starting=",
    "maxoffsetspertrigger": "use max_per_epoch=",
    "failondataloss": "lost input must stop the job",
    "includeheaders": "headers are always there",
    "kafka.bootstrap.servers": "use the settings CLONOS_KAFKA__…",
    "kafka.group.id": "the job's progress has a group of its own",
}


class KafkaSource:
    """One or several topics as a streaming DataFrame.

    Args:
        topics: Their names.
        starting: ``earliest``, ``latest`` or topic → partition → offset, for the job's first epoch.
        max_per_epoch: So many records at the most in one epoch.
        options: Further options of Spark's Kafka source.

    Raises:
        SpecError: No topic, or an option that is not the user's to set.
    """

    def __init__(
        self,
        topics: tuple[str, ...],
        *,
        starting: str | Mapping[str, Mapping[int, int]] = "earliest",
        max_per_epoch: int | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        if not topics or not all(topics):
            raise SpecError("ctx.source names no topic.")
        if isinstance(starting, str) and starting not in {"earliest", "latest"}:
            raise SpecError(f"starting={starting!r} is not known.", hint="use earliest, latest or a map of offsets.")
        if max_per_epoch is not None and max_per_epoch < 1:
            raise SpecError(f"max_per_epoch={max_per_epoch} would read nothing.")
        for option in options or {}:
            if option.lower() in _RESERVED:
                raise SpecError(f"The source option {option!r} is not free.", hint=_RESERVED[option.lower()] + ".")
        self._topics = tuple(sorted(set(topics)))
        self._starting = starting
        self._max_per_epoch = max_per_epoch
        self._options = dict(options or {})
        self._progress: dict[str, _ProgressGroup] = {}

    def topics(self) -> frozenset[str]:
        """The topics that users know of."""
        return frozenset(self._topics)

    def check(self, kafka: KafkaSettings) -> None:
        """Refuse topics that do not exist (Spark would wait for them for ever)."""
        metadata = _metadata(kafka)
        missing = [name for name in self._topics if name not in metadata or metadata[name] is None]
        if missing:
            raise TopicMissing(
                f"The source topics {missing} do not exist.", kept="nothing was started.", hint="create them first."
            )

    def load(self, spark: SparkSession, kafka: KafkaSettings, job: str) -> DataFrame:
        """The streaming DataFrame."""
        _ensure_padding(kafka)
        starting = self._starting if isinstance(self._starting, str) else self._starting_json(kafka)
        options = {
            **spark_options(kafka),
            # One-record latency 680 → 165 ms against the default of 500 ms.
            "kafka.fetch.max.wait.ms": "5",
            "kafka.isolation.level": "read_committed",
            **self._options,
            "subscribe": ",".join([*self._topics, PADDING_TOPIC]),
            "startingOffsets": starting,
            "includeHeaders": "true",
            "failOnDataLoss": "true",
        }
        if self._max_per_epoch is not None:
            options["maxOffsetsPerTrigger"] = str(self._max_per_epoch)
        return spark.readStream.format("kafka").options(**options).load()

    def _starting_json(self, kafka: KafkaSettings) -> str:
        """Spark wants an offset for every partition; those not named start at the earliest (-2)."""
        given = self._starting if not isinstance(self._starting, str) else {}
        partitions = _metadata(kafka)
        offsets = {
            topic: {str(p): given.get(topic, {}).get(p, -2) for p in partitions.get(topic) or ()}
            for topic in (*self._topics, PADDING_TOPIC)
        }
        return json.dumps(offsets)

    def check_retained(self, kafka: KafkaSettings, progress: Progress) -> None:
        """Refuse to start from offsets that retention has deleted already."""
        wanted = {
            TopicPartition(topic, partition): offset
            for topic in self._topics
            for partition, offset in progress.get(topic, {}).items()
        }
        if not wanted:
            return
        admin = AdminClient(client_config(kafka))
        first, end = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
        earliest = admin.list_offsets(dict.fromkeys(wanted, first), request_timeout=_TIMEOUT_S)
        latest = admin.list_offsets(dict.fromkeys(wanted, end), request_timeout=_TIMEOUT_S)
        try:
            lost = [
                f"{tp.topic}[{tp.partition}] needs {offset}, has {low.result().offset}..{high.result().offset}"
                for (tp, offset), low, high in zip(wanted.items(), earliest.values(), latest.values(), strict=True)
                if not low.result().offset <= offset <= high.result().offset
            ]
        except KafkaException as error:
            raise BrokerUnavailable(f"The source's offsets cannot be read: {error.args[0].str()}.") from error
        if lost:
            raise SourceOffsetsExpired(
                f"The source no longer holds what the checkpoint needs: {'; '.join(lost)}.",
                hint="restore the topic, raise its retention, or start a new lineage from what is left.",
            )

    def publish_progress(self, kafka: KafkaSettings, group: str, progress: Progress) -> None:
        """Commit `progress` to a consumer group without members, so that lag tools show the job."""
        if group not in self._progress:
            self._progress[group] = _ProgressGroup(kafka, group)
        self._progress[group].commit({topic: progress[topic] for topic in self._topics if topic in progress})


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


def _metadata(kafka: KafkaSettings) -> dict[str, list[int] | None]:
    try:
        topics = AdminClient(client_config(kafka)).list_topics(timeout=_TIMEOUT_S).topics
    except KafkaException as error:
        raise BrokerUnavailable(f"Kafka did not answer: {error.args[0].str()}.") from error
    return {name: None if known.error else sorted(known.partitions) for name, known in topics.items()}


def _ensure_padding(kafka: KafkaSettings) -> None:
    if _metadata(kafka).get(PADDING_TOPIC):
        return
    admin = AdminClient(client_config(kafka))
    future = admin.create_topics([NewTopic(PADDING_TOPIC, num_partitions=_PADDING_PARTITIONS)])[PADDING_TOPIC]
    try:
        future.result(_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise BrokerUnavailable(f"The topic {PADDING_TOPIC} cannot be made: {error.args[0].str()}.") from error
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        if len(_metadata(kafka).get(PADDING_TOPIC) or ()) == _PADDING_PARTITIONS:
            return
        admin.poll(0.02)
