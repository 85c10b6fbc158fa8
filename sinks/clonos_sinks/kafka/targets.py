"""What a lane may send: to topics that exist, to partitions that they have, records that they take.

librdkafka alone would wait 30 seconds for a topic that does not exist, and learns of a record that is too large from
the broker, without its size and after other batches were sent. It never splits a batch either: one that is larger
than a topic's ``max.message.bytes`` is refused although each of its records would fit, so a producer's ``batch.size``
follows the topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, ResourceType

from clonos.errors import ClonosError, RecordRefused, SinkTopicGone, TopicMissing
from clonos.kafka import client_config, unanswered
from clonos.settings import KafkaSettings
from clonos_sinks.kafka.rows import Headers, Row

_TIMEOUT_S: Final = 15.0
_BATCH_BYTES: Final = 1_000_000  # librdkafka's default
_BATCH_OVERHEAD: Final = 61
# Produce requests hold a topic's name and more besides the batch.
_REQUEST_OVERHEAD: Final = 1024
_UNLIMITED: Final = 2**31 - 1


class Limits(msgspec.Struct, frozen=True):
    """What the cluster takes, as read when the sink starts.

    Attributes:
        request: ``socket.request.max.bytes`` of the brokers: they hang up on more.
        topic: The topic whose limit is known; the sink's default one.
        record: Its ``max.message.bytes``.
    """

    request: int = _UNLIMITED
    topic: str | None = None
    record: int = _UNLIMITED

    @property
    def batch(self) -> int:
        """``batch.size`` of a lane's producer."""
        return max(1, min(_BATCH_BYTES, self.record, self.request - _REQUEST_OVERHEAD))


class Target(NamedTuple):
    """One topic.

    Attributes:
        partitions: How many it has.
        limit: What one record may take, with what Kafka adds to it.
        grouped: Whether the producer's batches may be larger than that.
    """

    partitions: int
    limit: int
    grouped: bool


class Targets:
    """The topics that one lane sends to, each looked up at its first record.

    Args:
        kafka: The cluster.
        producer: The lane's.
        limits: What was known at start.
    """

    def __init__(self, kafka: KafkaSettings, producer: Producer, limits: Limits) -> None:
        self._kafka = kafka
        self._producer = producer
        self._limits = limits
        self._known: dict[str, Target] = {}
        self._queued: dict[str, int] = {}

    def of(self, topic: str) -> Target:
        """The topic.

        Raises:
            TopicMissing: It does not exist (and is not created by asking).
            SinkTopicGone: It was there when the sink started.
            BrokerUnavailable: No answer.
        """
        found = self._known.get(topic)
        if found is None:
            found = self._known[topic] = self._look_up(topic)
        return found

    def _look_up(self, topic: str) -> Target:
        try:
            metadata = self._producer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
        except KafkaException as failure:
            raise unanswered(f"Kafka did not tell about {topic}", failure.args[0]) from failure
        if metadata.error is not None:
            raise self._missing(topic, metadata.error)
        record = self._limits.record if topic == self._limits.topic else _record_limit(self._kafka, topic)
        limit = min(record, self._limits.request - _REQUEST_OVERHEAD)
        return Target(len(metadata.partitions), limit, limit < self._limits.batch)

    def _missing(self, topic: str, error: KafkaError) -> ClonosError:
        if topic == self._limits.topic and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return SinkTopicGone(f"The sink topic {topic!r} was there when the job started, and is gone.")
        return _missing(topic, error)

    def admit(self, row: Row) -> None:
        """Refuse a record that Kafka can never take; called before each record is produced.

        Raises:
            RecordRefused: Too large, or for a partition that the topic does not have.
            TopicMissing: The topic does not exist.
        """
        target = self._known.get(row.topic) or self.of(row.topic)
        if row.partition is not None and not 0 <= row.partition < target.partitions:
            raise RecordRefused(
                f"A record is for partition {row.partition} of {row.topic}, which has {target.partitions}.",
                hint="mend the column 'partition', or add partitions to the topic.",
            )
        size = _at_most(row)
        if size > target.limit:
            size = batch_bytes(row)  # to the byte
            if size > target.limit:
                self._refuse(row.topic, size, target)
        if target.grouped:
            self._make_room(row.topic, size, target)

    def _refuse(self, topic: str, size: int, target: Target) -> None:
        """Raise, unless the topic was given a larger limit since it was read."""
        now = min(_record_limit(self._kafka, topic, afresh=True), self._limits.request - _REQUEST_OVERHEAD)
        if size <= now:
            self._known[topic] = target._replace(limit=now)
            return
        setting = (
            "the topic's max.message.bytes"
            if now < self._limits.request - _REQUEST_OVERHEAD
            else ("the brokers' socket.request.max.bytes")
        )
        raise RecordRefused(
            f"A record for {topic} takes {size} bytes, {setting} allows {now}.",
            hint=f"raise {setting} to at least {size}, or publish smaller records.",
        )

    def _make_room(self, topic: str, size: int, target: Target) -> None:
        """Keep a batch within what a topic takes that is smaller than the producer's batches."""
        queued = self._queued.get(topic, 0) + size
        if queued > target.limit:
            self._producer.flush(_TIMEOUT_S)
            queued = size
        self._queued[topic] = queued


def read_limits(admin: AdminClient, broker: Mapping[str, ConfigEntry], topic: str | None) -> Limits:
    """What the cluster takes.

    Raises:
        KafkaException: It does not tell.
    """
    record = _described(admin, topic) if topic is not None else _UNLIMITED
    return Limits(int(broker["socket.request.max.bytes"].value or _UNLIMITED), topic, record)


_read: dict[tuple[str, str], int] = {}


def _record_limit(kafka: KafkaSettings, topic: str, *, afresh: bool = False) -> int:
    """``max.message.bytes`` of a topic, read once in a worker."""
    key = (kafka.bootstrap_servers, topic)
    if afresh or key not in _read:
        try:
            _read[key] = _described(AdminClient(client_config(kafka)), topic)
        except KafkaException as failure:
            raise _missing(topic, failure.args[0]) from failure
    return _read[key]


def _described(admin: AdminClient, topic: str) -> int:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        return int(admin.describe_configs([resource])[resource].result(_TIMEOUT_S)["max.message.bytes"].value)
    except KafkaException as failure:
        if failure.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return _UNLIMITED  # who may write need not be allowed to ask; the broker will refuse what is too large
        raise


def _missing(topic: str, error: KafkaError) -> ClonosError:
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return TopicMissing(
            f"The sink topic {topic!r} does not exist.",
            kept="the epoch was not published; it is replayed when the job runs again.",
            hint="create it, or mend the column 'topic'.",
        )
    return unanswered(f"Kafka did not tell about {topic}", error)


def _at_most(row: Row) -> int:
    """An upper bound of `batch_bytes`, quickly."""
    size = 96 + len(row.key or b"") + len(row.value or b"")
    if row.headers:
        size += sum(10 + len(name) * 4 + len(value or b"") for name, value in row.headers)
    return size


def batch_bytes(row: Row) -> int:
    """What a batch of this one record takes, as the broker counts it (Kafka's record format, version 2)."""
    body = 3 + _field(row.key) + _field(row.value) + _headers(row.headers)  # attributes, two deltas of zero
    return _BATCH_OVERHEAD + _varint(body) + body


def _field(data: bytes | None) -> int:
    return 1 if data is None else _varint(len(data)) + len(data)


def _headers(headers: Headers | None) -> int:
    given = headers or ()
    return _varint(len(given)) + sum(_field(name.encode()) + _field(value) for name, value in given)


def _varint(number: int) -> int:
    """Bytes of a non-negative number in zig-zag encoding, seven bits to a byte."""
    return max(1, ((number << 1).bit_length() + 6) // 7)
