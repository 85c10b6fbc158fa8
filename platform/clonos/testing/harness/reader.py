"""Reads topics as a read_committed consumer sees them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Literal

from confluent_kafka import OFFSET_BEGINNING, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from clonos.errors import BrokerUnavailable
from clonos.kafka import about_the_group, assigned_reader, client_config
from clonos.settings import KafkaSettings
from clonos.testing.harness.waiting import Deadline, eventually

_GROUP = "clonos-harness"
_VISIBLE_S = 2.0
_READ_S = 30.0
_METADATA_S = 60.0
_BATCH = 500
_RETRY_S = 0.1
_LEVELS = {"read_committed": IsolationLevel.READ_COMMITTED, "read_uncommitted": IsolationLevel.READ_UNCOMMITTED}


def read_committed(kafka: KafkaSettings, topic: str) -> list[Message]:
    """Read all records of `topic` that a read_committed consumer sees.

    A broker shows a committed transaction a moment after its confirmation. So the function waits up to two seconds,
    longer on a busy machine, while a transaction is open. Records of a transaction that stays open are not returned.

    Returns:
        The records by partition and offset.
    """
    deadline = Deadline(_VISIBLE_S)
    while has_open_transaction(kafka, topic) and not deadline.passed():
        time.sleep(0.01)
    consumer = assigned_reader(kafka, _GROUP, fetch_wait_max_ms=5, enable_partition_eof=True)
    records: list[Message] = []
    at_end: set[int | None] = set()

    def read_all() -> bool:
        message = consumer.poll(1.0)
        error = message.error() if message is not None else None
        if message is not None and error is None:
            records.append(message)
        elif message is not None and error is not None and error.code() == KafkaError._PARTITION_EOF:
            at_end.add(message.partition())
        return len(at_end) == len(partitions)

    try:
        partitions = consumer.list_topics(topic, timeout=_METADATA_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        eventually(read_all, f"the end of {topic} is read", timeout_s=_READ_S, poll_s=0.0)
    finally:
        consumer.close()
    return sorted(records, key=lambda record: (record.partition() or 0, record.offset() or 0))


def end_offsets(
    kafka: KafkaSettings, topic: str, isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
) -> list[int]:
    """Return the end offset of each partition; for ``read_committed`` the last stable offset."""
    admin = AdminClient(client_config(kafka))
    return _end_offsets(admin, _partitions(admin, topic), isolation)


def has_open_transaction(kafka: KafkaSettings, *topics: str) -> bool:
    """Whether a transaction is open on any of the topics: its last stable offset is before its high watermark."""
    admin = AdminClient(client_config(kafka))  # it costs the broker less than a consumer for each isolation level
    partitions = [partition for topic in topics for partition in _partitions(admin, topic)]
    return _end_offsets(admin, partitions, "read_committed") != _end_offsets(admin, partitions, "read_uncommitted")


def _partitions(admin: AdminClient, topic: str) -> list[TopicPartition]:
    return [
        TopicPartition(topic, number)
        for number in sorted(admin.list_topics(topic, timeout=_METADATA_S).topics[topic].partitions)
    ]


def _end_offsets(
    admin: AdminClient, partitions: list[TopicPartition], isolation: Literal["read_committed", "read_uncommitted"]
) -> list[int]:
    """Return the end offset of each partition. A new client may have stale metadata, so errors are retried for 15 s."""
    deadline = time.monotonic() + _METADATA_S
    while True:
        try:
            asked = {partition: OffsetSpec.latest() for partition in partitions}  # type: ignore[no-untyped-call]
            answers = admin.list_offsets(asked, isolation_level=_LEVELS[isolation])
            return [answers[partition].result(_METADATA_S).offset for partition in partitions]
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_S)


class CommittedReader:
    """Follows topics from their beginning with a read_committed consumer, in a background thread.

    Args:
        kafka: The Kafka cluster.
        topics: The number of partitions of each topic.
        take: Called in the thread for each record, with the time of its arrival (monotonic clock, in seconds).
        fetch_wait_ms: ``fetch.wait.max.ms`` of the consumer.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        topics: Mapping[str, int],
        take: Callable[[Message, float], None],
        *,
        fetch_wait_ms: int = 5,
    ) -> None:
        self._partitions = {(topic, number) for topic, count in topics.items() for number in range(count)}
        self._take = take
        self._at_end: set[tuple[str | None, int | None]] = set()
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._failure: str | None = None
        self._consumer = assigned_reader(
            kafka,
            _GROUP,
            enable_partition_eof=True,
            fetch_wait_max_ms=fetch_wait_ms,
            fetch_error_backoff_ms=1,
            fetch_queue_backoff_ms=1,
            log_level=0,  # a lost broker is raised to the caller
        )
        self._thread = threading.Thread(target=self._follow, name="committed-reader", daemon=True)

    def start(self) -> None:
        """Start following the topics in a background thread."""
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in self._partitions])
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and close the consumer."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._consumer.close()

    def wait_for(self, check: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `check` returns True; the reader calls it after each batch, with its lock held. Returns whether it
        did.

        Raises:
            BrokerUnavailable: The reader lost its connection to Kafka.
        """
        with self._changed:
            held = self._changed.wait_for(lambda: self._failure is not None or check(), timeout_s)
            if self._failure is not None:
                raise BrokerUnavailable(f"The reader of the output lost Kafka: {self._failure}.")
            return held

    def drain(self, *, quiet_s: float = 0.5, timeout_s: float = 30.0) -> bool:
        """Wait until every partition was read to its end, and nothing came for `quiet_s`, when no process writes any
        more.

        Returns:
            False if the end of a partition was not reached in time, for instance because a transaction is open.

        Raises:
            BrokerUnavailable: The reader lost its connection to Kafka.
        """
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            at_end = self.wait_for(lambda: self._at_end == self._partitions, left)
            if at_end and not self.wait_for(lambda: self._at_end != self._partitions, quiet_s):
                return True
        return False

    def receive(self, message: Message, arrived: float) -> None:
        """Process one message of the consumer. The thread calls this with the lock held; subclasses may override it."""
        partition = (message.topic(), message.partition())
        error = message.error()
        if error is None:
            self._at_end.discard(partition)
            self._take(message, arrived)
        elif error.code() == KafkaError._PARTITION_EOF:
            self._at_end.add(partition)
        elif not about_the_group(error) and (error.fatal() or not error.retriable()):
            self._failure = error.str()

    def _follow(self) -> None:
        while not self._stopping.is_set():
            # One record is enough to return; the rest of a fetch follows without a wait.
            first = self._consumer.poll(0.05)
            if first is None:
                continue
            arrived = time.monotonic()
            messages = [first, *self._consumer.consume(_BATCH, timeout=0.0)]
            with self._changed:
                for message in messages:
                    self.receive(message, arrived)
                self._changed.notify_all()
