"""First and end offsets of partitions, also after their leaders changed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec, TopicMetadata

from clonos.errors import BrokerUnavailable, KafkaAccessDenied
from clonos.kafka import admin_client, unanswered
from clonos.settings import KafkaSettings

Offsets = dict[tuple[str, int], int]  # (topic, partition) → offset
_Request = tuple[OffsetSpec, IsolationLevel]
_EMPTY_ANSWERS: Final = 3
_EMPTY_PAUSE_S: Final = 0.02
_UNCLEAR: Final = frozenset({KafkaError._NOENT, KafkaError._UNKNOWN_PARTITION})
_PROBLEM: Final = "The offsets of partitions cannot be read"


class OffsetClient:
    """Requests the offsets of partitions.

    It replaces its Kafka client after a failed request: librdkafka keeps the leader epochs that it has read for up to
    five minutes, and Kafka refuses each request with an older one. A restart of the only broker changes them too.

    Args:
        kafka: The Kafka cluster.
        timeout_s: Longest wait for the answer to one request, in seconds.

    Example::

        client = OffsetClient(KafkaSettings())
        ends = client.ends(client.partitions("orders"))
        ends["orders", 0]
    """

    def __init__(self, kafka: KafkaSettings, *, timeout_s: float = 5.0) -> None:
        self._kafka = kafka
        self._timeout_s = timeout_s
        self._admin: AdminClient | None = None

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic; none if it does not exist.

        Raises:
            BrokerUnavailable: Kafka did not answer.
            KafkaAccessDenied: Kafka refused access.
        """
        try:
            metadata = self._connected(topic).list_topics(topic, timeout=self._timeout_s)
        except KafkaException as error:
            self._admin = None
            raise unanswered(_PROBLEM, error.args[0]) from error
        return [TopicPartition(topic, number) for number in metadata.topics[topic].partitions]

    def ends(
        self, partitions: Collection[TopicPartition], isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> Offsets:
        """Return the end offset of each partition that exists; with READ_COMMITTED, where the first open transaction
        begins.

        Raises:
            BrokerUnavailable: Kafka did not answer.
            KafkaAccessDenied: Kafka refused access.
        """
        return self._request(partitions, (OffsetSpec.latest(), isolation))[0]  # type: ignore[no-untyped-call]

    def bounds(self, partitions: Collection[TopicPartition]) -> tuple[Offsets, Offsets]:
        """Return the first offset, and the end offset for read_committed, of each partition; raises as `ends`."""
        first, end = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
        committed = IsolationLevel.READ_COMMITTED
        begins, ends = self._request(partitions, (first, committed), (end, committed))
        return begins, ends

    def _request(self, partitions: Collection[TopicPartition], *requests: _Request) -> list[Offsets]:
        if not partitions:
            return [{} for _ in requests]
        reused = self._admin is not None
        try:
            return self._answers(partitions, requests)
        except (BrokerUnavailable, KafkaAccessDenied):
            self._admin = None
            if not reused:
                raise
            return self._request(partitions, *requests)

    def _answers(self, partitions: Collection[TopicPartition], requests: Collection[_Request]) -> list[Offsets]:
        try:
            admin = self._connected(next(iter(partitions)).topic)
            futures = [
                admin.list_offsets(
                    dict.fromkeys(partitions, spec), isolation_level=isolation, request_timeout=self._timeout_s
                )
                for spec, isolation in requests
            ]
        except KafkaException as error:
            raise unanswered(_PROBLEM, error.args[0]) from error
        answers = []
        missing = _Missing(admin, self._timeout_s)
        for by_partition in futures:
            offsets: Offsets = {}
            for partition, future in by_partition.items():
                try:
                    offset = future.result(2 * self._timeout_s).offset
                except TimeoutError as error:
                    raise BrokerUnavailable(f"{_PROBLEM}: no answer in {2 * self._timeout_s:g} s.") from error
                except KafkaException as error:
                    if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                        continue
                    # If no partition has a leader, librdkafka does not report which topics do not exist. It does not
                    # know a partition that the topic had before it was created again.
                    if error.args[0].code() in _UNCLEAR and partition in missing:
                        continue
                    raise unanswered(_PROBLEM, error.args[0]) from error
                if offset < 0:  # librdkafka's answer if the connection was lost after the request
                    raise BrokerUnavailable(f"{_PROBLEM}: the broker of {partition} was lost.")
                offsets[partition.topic, partition.partition] = offset
            answers.append(offsets)
        return answers

    def _connected(self, topic: str) -> AdminClient:
        """Return the client, which is kept until a request fails."""
        admin = self._admin  # another thread may discard it
        if admin is None:
            admin = self._admin = admin_client(self._kafka, topic, timeout_s=self._timeout_s)
        return admin


def partition_bounds(consumer: Consumer, topic: str, partition: int, *, timeout_s: float) -> tuple[int, int]:
    """Return the first offset of a partition, and its end for the consumer's isolation level.

    librdkafka sends two requests. If the first one fails and the second one does not, as while the leader changes, it
    reports the end as the first offset too. So an answer of an empty partition counts only if it is repeated.

    Raises:
        KafkaException: Kafka did not answer.
    """
    for _ in range(_EMPTY_ANSWERS):
        low, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout_s)
        if low < end or end == 0:
            break
        consumer.poll(_EMPTY_PAUSE_S)
    return int(low), int(end)


class _Missing:
    """The partitions that do not exist; the metadata of each topic is requested once."""

    def __init__(self, admin: AdminClient, timeout_s: float) -> None:
        self._admin = admin
        self._timeout_s = timeout_s
        self._known: dict[str, TopicMetadata] = {}

    def __contains__(self, partition: TopicPartition) -> bool:
        topic = partition.topic
        if topic not in self._known:
            try:
                self._known[topic] = self._admin.list_topics(topic, timeout=self._timeout_s).topics[topic]
            except KafkaException:
                return False
        known = self._known[topic]
        if known.error is not None:
            return bool(known.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART)
        return partition.partition not in known.partitions
