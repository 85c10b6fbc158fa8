"""Checks each record before it is sent: the topic and the partition exist, and the broker accepts the size.

librdkafka alone would wait 30 seconds for a topic that does not exist. The broker reports a record that is too large
without its size, after other batches were sent. librdkafka also never splits a batch: the broker refuses a batch above
the topic's ``max.message.bytes`` although each record would fit. So a producer's ``batch.size`` follows the topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, ResourceType

from clonos.errors import ClonosError, RecordRejected, SinkTopicDeleted, TopicMissing
from clonos.kafka import client_config, unanswered
from clonos.settings import KafkaSettings
from clonos_sinks.kafka.rows import Headers, Row

_TIMEOUT_S: Final = 15.0
_BATCH_BYTES: Final = 1_000_000  # librdkafka's default
_BATCH_OVERHEAD: Final = 61
# Bytes of a produce request besides the batch, such as the topic's name.
_REQUEST_OVERHEAD: Final = 1024
_UNLIMITED: Final = 2**31 - 1


class Limits(msgspec.Struct, frozen=True):
    """Size limits of the cluster in bytes, as read when the sink starts."""

    # ``socket.request.max.bytes`` of the brokers, which close the connection on larger requests.
    request: int = _UNLIMITED
    topic: str | None = None  # the sink's default topic
    record: int = _UNLIMITED  # ``max.message.bytes`` of `topic`

    @property
    def batch(self) -> int:
        """The value of ``batch.size`` for a lane's producer, in bytes."""
        return max(1, min(_BATCH_BYTES, self.record, self.largest))

    @property
    def largest(self) -> int:
        """The largest size of a batch that fits into a request, in bytes."""
        return self.request - _REQUEST_OVERHEAD


class Target(NamedTuple):
    """Partitions and size limit of one topic that a lane sends to."""

    partitions: int
    limit: int  # maximum size of a batch with one record, in bytes
    grouped: bool  # whether the producer's batches may become larger than `limit`


class Targets:
    """The limits of the topics that one lane sends to. Each topic is looked up at its first record."""

    def __init__(self, kafka: KafkaSettings, producer: Producer, limits: Limits) -> None:
        self._kafka = kafka
        self._producer = producer
        self._limits = limits
        self._known: dict[str, Target] = {}
        self._queued: dict[str, int] = {}

    def of(self, topic: str) -> Target:
        """Partitions and size limit of a topic.

        Raises:
            TopicMissing: The topic does not exist. The lookup does not create it.
            SinkTopicDeleted: The topic existed when the sink started.
            BrokerUnavailable: Kafka did not answer.
        """
        target = self._known.get(topic)
        if target is None:
            target = self._known[topic] = self._look_up(topic)
        return target

    def _look_up(self, topic: str) -> Target:
        return look_up(self._kafka, self._producer, self._limits, topic)

    def admit(self, row: Row) -> None:
        """Refuse a record that Kafka cannot accept. Call this before each record is produced.

        This also flushes the producer, if the record would make a batch larger than the topic allows.

        Raises:
            RecordRejected: The record is too large, or its partition does not exist.
            TopicMissing: The topic does not exist.
        """
        target = self._known.get(row.topic) or self.of(row.topic)
        if row.partition is not None and not 0 <= row.partition < target.partitions:
            raise RecordRejected(
                f"A record is for partition {row.partition} of {row.topic}, which has {target.partitions} partitions.",
                hint="fix the column 'partition', or add partitions to the topic.",
            )
        size = _upper_bound(row)
        if size > target.limit:
            size = batch_bytes(row)  # exact
            if size > target.limit:
                self._refuse(row.topic, size, target)
        if target.grouped:
            self._make_room(row.topic, size, target)

    def _refuse(self, topic: str, size: int, target: Target) -> None:
        """Raise, unless the topic's limit was raised since it was read."""
        limit = min(_record_limit(self._kafka, topic, reread=True), self._limits.largest)
        if size <= limit:
            self._known[topic] = target._replace(limit=limit)
            return
        setting = (
            "the topic's max.message.bytes" if limit < self._limits.largest else "the brokers' socket.request.max.bytes"
        )
        raise RecordRejected(
            f"A record for {topic} takes {size} bytes, {setting} allows {limit}.",
            hint=f"raise {setting} to at least {size}, or publish smaller records.",
        )

    def _make_room(self, topic: str, size: int, target: Target) -> None:
        """Flush before the batch would exceed the topic's limit, if that is below the producer's ``batch.size``."""
        queued = self._queued.get(topic, 0) + size
        if queued > target.limit:
            self._producer.flush(_TIMEOUT_S)
            queued = size
        self._queued[topic] = queued


def look_up(
    kafka: KafkaSettings, client: Producer | AdminClient, limits: Limits, topic: str, *, again: bool = False
) -> Target:
    """Read partitions and size limit of a topic from Kafka; this does not create the topic.

    Args:
        kafka: The cluster.
        client: A client that is connected to it.
        limits: The limits that the sink read at its start.
        topic: The topic.
        again: Read the size limit again: a user may have changed it since.

    Raises:
        TopicMissing: The topic does not exist.
        SinkTopicDeleted: The topic existed when the sink started.
        BrokerUnavailable: Kafka did not answer.
    """
    try:
        metadata = client.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
    except KafkaException as failure:
        raise unanswered(f"Kafka did not describe the topic {topic}", failure.args[0]) from failure
    if metadata.error is not None:
        if topic == limits.topic and metadata.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise SinkTopicDeleted(f"The sink topic {topic!r} existed when the job started, and was deleted.")
        raise _missing(topic, metadata.error)
    known = topic == limits.topic and not again
    record = limits.record if known else _record_limit(kafka, topic, reread=again)
    limit = min(record, limits.largest)
    return Target(len(metadata.partitions), limit, limit < limits.batch)


def read_limits(admin: AdminClient, broker: Mapping[str, ConfigEntry], topic: str | None) -> Limits:
    """Read the size limits of the cluster and of the sink's default topic; `broker` has the settings of one broker."""
    record = _described(admin, topic) if topic is not None else _UNLIMITED
    return Limits(int(broker["socket.request.max.bytes"].value or _UNLIMITED), topic, record)


_record_limits: dict[tuple[str, str], int] = {}


def _record_limit(kafka: KafkaSettings, topic: str, *, reread: bool = False) -> int:
    """``max.message.bytes`` of a topic, read once per worker."""
    key = (kafka.bootstrap_servers, topic)
    if reread or key not in _record_limits:
        try:
            _record_limits[key] = _described(AdminClient(client_config(kafka)), topic)
        except KafkaException as failure:
            raise _missing(topic, failure.args[0]) from failure
    return _record_limits[key]


def _described(admin: AdminClient, topic: str) -> int:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        return int(admin.describe_configs([resource])[resource].result(_TIMEOUT_S)["max.message.bytes"].value)
    except KafkaException as failure:
        if failure.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return _UNLIMITED  # a client may write without the right to describe; the broker refuses larger records
        raise


def _missing(topic: str, error: KafkaError) -> ClonosError:
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return TopicMissing(
            f"The sink topic {topic!r} does not exist.",
            kept="the epoch was not published; it is replayed when the job runs again.",
            hint="create it, or fix the column 'topic'.",
        )
    return unanswered(f"Kafka did not describe the topic {topic}", error)


def _upper_bound(row: Row) -> int:
    """An upper bound of `batch_bytes`, which is cheaper to compute."""
    size = 96 + len(row.key or b"") + len(row.value or b"")
    if row.headers:
        size += sum(10 + len(name) * 4 + len(value or b"") for name, value in row.headers)
    return size


def batch_bytes(row: Row) -> int:
    """The size of a batch with this record alone, as the broker counts it (Kafka's record format, version 2)."""
    body = 3 + _field(row.key) + _field(row.value) + _headers(row.headers)  # attributes, two deltas of zero
    return _BATCH_OVERHEAD + _varint(body) + body


def _field(data: bytes | None) -> int:
    return 1 if data is None else _varint(len(data)) + len(data)


def _headers(headers: Headers | None) -> int:
    pairs = headers or ()
    return _varint(len(pairs)) + sum(_field(name.encode()) + _field(value) for name, value in pairs)


def _varint(number: int) -> int:
    """The number of bytes of a non-negative number in zig-zag encoding, with seven bits in each byte."""
    return max(1, ((number << 1).bit_length() + 6) // 7)
