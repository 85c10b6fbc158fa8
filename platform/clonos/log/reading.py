"""Reads the causal log: a range of offsets of one partition, or the partition's newest claim or marker (its *tail*)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from clonos.deadline import Deadline
from clonos.errors import BrokerUnavailable, CausalLogDamaged, ClonosError, Superseded
from clonos.kafka import REFUSALS, assigned_reader, unanswered
from clonos.log.records import Claim, Marker, Owner, Record, decode
from clonos.partition_offsets import partition_bounds
from clonos.settings import KafkaSettings

_TIMEOUT_S: Final = 20.0
_CONNECT_S: Final = 5.0
_FIRST_LOOK_BACK: Final = 32
SINGLE_RECORD_TRANSACTION: Final = 2  # offsets: the record, and the broker's commit marker


class Positioned(NamedTuple):
    """A record of the causal log with its offset."""

    offset: int
    record: Record


class Tail(NamedTuple):
    """The newest claim or marker of a log partition, its offset, and the partition's last stable offset (`end`)."""

    offset: int
    record: Claim | Marker
    end: int

    @property
    def marker(self) -> Marker | None:
        """The newest marker of the partition: the tail itself, or the marker that the claim at the tail repeats."""
        return self.record if isinstance(self.record, Marker) else self.record.marker


class LogReader:
    """A read_committed reader of the partitions of one causal log. Use it in one thread only."""

    def __init__(self, kafka: KafkaSettings, topic: str) -> None:
        self.topic = topic
        self._consumer = assigned_reader(
            kafka,
            group=topic,
            enable_partition_eof=True,
            auto_offset_reset="error",
            fetch_wait_max_ms=5,
            fetch_error_backoff_ms=2,
            fetch_queue_backoff_ms=2,
        )
        # Otherwise the first request races librdkafka's change from the bootstrap to the real broker: of 1,200 readers
        # nine waited 700 ms; with this request none did.
        with contextlib.suppress(KafkaException):  # the first read reports it
            self._consumer.list_topics(topic, timeout=_CONNECT_S)

    def bounds(self, partition: int) -> tuple[int, int]:
        """Return the first offset of a log partition, and its last stable offset.

        Raises:
            BrokerUnavailable: Kafka did not answer in time.
            KafkaAccessDenied: Kafka refuses access.
        """
        deadline = Deadline(_TIMEOUT_S)
        while True:
            try:
                return partition_bounds(self._consumer, self.topic, partition, timeout_s=5.0)
            except KafkaException as error:
                if deadline.passed():
                    raise self._unreadable(f"{self.topic}[{partition}]", error.args[0]) from error
                # A new partition is not in this client's metadata yet: request the metadata again.
                with contextlib.suppress(KafkaException):
                    self._consumer.list_topics(self.topic, timeout=5.0)
                self._consumer.poll(0.005)

    def read(self, partition: int, start: int, until: int) -> Iterator[Positioned]:
        """Yield the records of a log partition from offset `start` up to `until` (exclusive).

        Raises:
            CausalLogDamaged: `start` was truncated.
            ForeignRecord: A record was not written by Clonos.
            BrokerUnavailable: Kafka did not answer in time.
        """
        for offset, message in self.messages(partition, start, until):
            yield Positioned(offset, decode(message.value(), where=f"{self.topic}[{partition}]@{offset}"))

    def messages(self, partition: int, start: int, until: int) -> Iterator[tuple[int, Message]]:
        """Yield the Kafka messages of a log partition from offset `start` up to `until` (exclusive), not decoded.

        Raises:
            CausalLogDamaged: `start` was truncated.
            BrokerUnavailable: Kafka did not answer in time.
        """
        if start >= until:
            return
        self._consumer.assign([TopicPartition(self.topic, partition, start)])
        deadline = Deadline(_TIMEOUT_S)
        try:
            while True:
                batch = self._batch()
                for message in batch:
                    error = message.error()
                    if error is None:
                        offset = message.offset()
                        if offset is None or message.partition() != partition:
                            raise AssertionError("two threads share a LogReader")
                        if offset >= until:
                            return
                        yield offset, message
                        if offset + 1 >= until:
                            return
                    elif error.code() == KafkaError._PARTITION_EOF:
                        if (message.offset() or 0) >= until:
                            return
                    elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                        raise CausalLogDamaged(
                            f"The log {self.topic}[{partition}] no longer holds offset {start}.",
                            hint="the log was truncated: restore it, or start a new lineage to a new output.",
                        )
                    elif error.code() in REFUSALS or (error.fatal() and not error.retriable()):
                        raise self._unreadable(self.topic, error)
                if any(message.error() is None for message in batch):
                    deadline = Deadline(_TIMEOUT_S)
                elif deadline.passed():
                    raise BrokerUnavailable(f"The log {self.topic}[{partition}] did not answer in {_TIMEOUT_S:.0f} s.")
        finally:
            self._consumer.unassign()

    def _unreadable(self, place: str, error: KafkaError) -> ClonosError:
        return unanswered(f"The log {place} cannot be read", error, right=f"READ on the topic {self.topic}")

    def _batch(self) -> list[Message]:
        """Return the available messages; wait only for the first (`consume` would wait for all or the timeout)."""
        first = self._consumer.poll(0.5)
        return [] if first is None else [first, *self._consumer.consume(num_messages=500, timeout=0)]

    def tail(self, partition: int, *, visible: int = -1) -> Tail | None:
        """Find the newest claim or marker of a log partition, scanning backwards; None only if the partition never
        held a committed record.

        Args:
            partition: Log partition.
            visible: Offset of a committed record that must be visible first. The broker acknowledges a commit when it
                is decided, and writes the transaction marker that makes it visible a moment later (KIP-98). After
                ``init_transactions()`` there is nothing to wait for.

        Raises:
            CausalLogDamaged: The partition holds, or held, records but no claim or marker (invariant 8).
        """
        low, end = self._bounds_beyond(partition, visible)
        look_back = _FIRST_LOOK_BACK
        until = end
        while True:
            start = max(low, end - look_back)
            newest: Tail | None = None
            for offset, record in self.read(partition, start, until):
                if isinstance(record, Claim | Marker):
                    newest = Tail(offset, record, end)
            if newest is not None:
                return newest
            if start == low:
                if low == 0 and end == 0:
                    return None
                if low == 0 and not any(True for _ in self.read(partition, 0, end)):
                    return None  # only aborted transactions so far
                raise CausalLogDamaged(
                    f"The log {self.topic}[{partition}] ends at {end} but holds no claim or marker.",
                    hint="the log was truncated: restore it, or start a new lineage to a new output.",
                )
            until = start
            look_back *= 4

    def own_tail(self, partition: int, owner: Owner, lane: str, *, tail_offset: int = -1) -> Tail | None:
        """Find the newest claim or marker of a lane's log partition, and check that `owner` wrote it.

        Args:
            partition: Log partition.
            owner: The owner that may continue.
            lane: Name of the lane, for errors.
            tail_offset: Offset of the newest claim or marker that `owner` wrote; -1 if it must be read.

        Returns:
            The claim or marker; None if it is the record at `tail_offset` and no record follows.

        Raises:
            Superseded: Another owner wrote it.
            CausalLogDamaged: The partition has no claim.
        """
        if tail_offset >= 0 and self.bounds(partition)[1] == tail_offset + SINGLE_RECORD_TRANSACTION:
            return None
        tail = self.tail(partition)
        if tail is None:
            raise CausalLogDamaged(
                f"{lane} has no claim in {self.topic}[{partition}].",
                hint="the log was deleted: restore it, or start a new lineage to a new output.",
            )
        if tail.record.owner != owner:
            raise Superseded(f"Generation {tail.record.owner} owns {lane}; this driver was {owner}.")
        return tail

    def end(self, partition: int, *, visible: int = -1) -> int:
        """Return the last stable offset of a log partition, once the committed record at `visible` is visible."""
        return self._bounds_beyond(partition, visible)[1]

    def _bounds_beyond(self, partition: int, visible: int) -> tuple[int, int]:
        deadline = Deadline(_TIMEOUT_S)
        while True:
            low, end = self.bounds(partition)
            if end > visible:
                return low, end
            if deadline.passed():
                raise BrokerUnavailable(
                    f"{self.topic}[{partition}] did not show the committed offset {visible} in {_TIMEOUT_S:.0f} s."
                )
            self._consumer.poll(0.001)

    def close(self) -> None:
        """Close the Kafka consumer."""
        self._consumer.close()


class _Readers(threading.local):
    reader: LogReader | None = None
    key: object = None


_readers = _Readers()


def shared_reader(kafka: KafkaSettings, topic: str) -> LogReader:
    """Return this thread's reader of `topic`, created once: a consumer takes longer to connect than to read a tail."""
    key = (kafka.bootstrap_servers, topic)
    if _readers.key != key or _readers.reader is None:
        _readers.reader = LogReader(kafka, topic)
        _readers.key = key
    return _readers.reader
