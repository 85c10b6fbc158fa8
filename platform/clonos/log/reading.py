"""Reading the log: a stretch of one partition, or its tail."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from clonos.errors import BrokerUnavailable, CausalLogDamaged, Superseded
from clonos.kafka import REFUSALS, client_config, unanswered
from clonos.log.records import Claim, Marker, Owner, Record, decode
from clonos.settings import KafkaSettings

_TIMEOUT_S: Final = 20.0
_CONNECT_S: Final = 5.0
_FIRST_LOOK_BACK: Final = 32
_TRANSACTION_OF_ONE: Final = 2  # offsets: the record, and the broker's note of the commit


class Positioned(NamedTuple):
    """A record and its offset."""

    offset: int
    record: Record


class Tail(NamedTuple):
    """The newest claim or marker of a partition, where it stands, and the partition's stable end."""

    offset: int
    record: Claim | Marker
    end: int

    @property
    def marker(self) -> Marker | None:
        """The newest marker: the tail itself, or the one that the claim stands on."""
        return self.record if isinstance(self.record, Marker) else self.record.marker


class LogReader:
    """A read_committed reader of one log topic. One per thread: it moves between partitions."""

    def __init__(self, kafka: KafkaSettings, topic: str) -> None:
        self.topic = topic
        self._consumer = Consumer(
            client_config(
                kafka,
                group_id="clonos-log-reader",  # never joined, never committed
                isolation_level="read_committed",
                enable_auto_commit=False,
                enable_partition_eof=True,
                auto_offset_reset="error",
                fetch_wait_max_ms=5,
                fetch_error_backoff_ms=2,
                fetch_queue_backoff_ms=2,
            )
        )
        # Otherwise the first question races librdkafka's change from bootstrap to real broker: of 1,200 readers nine
        # waited 700 ms; asked like that, none.
        with contextlib.suppress(KafkaException):  # then the first question tells
            self._consumer.list_topics(topic, timeout=_CONNECT_S)

    def bounds(self, partition: int) -> tuple[int, int]:
        """First offset still there and the stable end (last stable offset)."""
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                low, high = self._consumer.get_watermark_offsets(TopicPartition(self.topic, partition), timeout=5.0)
            except KafkaException as error:
                if time.monotonic() > deadline:
                    raise unanswered(f"The log {self.topic}[{partition}] cannot be read", error.args[0]) from error
                # A partition made a moment ago is not in this client's metadata yet: ask for it anew.
                with contextlib.suppress(KafkaException):
                    self._consumer.list_topics(self.topic, timeout=5.0)
                self._consumer.poll(0.005)
                continue
            return low, high

    def stretch(self, partition: int, start: int, until: int) -> Iterator[Positioned]:
        """The records from offset `start` up to `until` (exclusive).

        Raises:
            CausalLogDamaged: `start` was truncated.
            ForeignRecord: Clonos did not write a record.
            BrokerUnavailable: No answer in time.
        """
        for offset, message in self.messages(partition, start, until):
            yield Positioned(offset, decode(message.value(), where=f"{self.topic}[{partition}]@{offset}"))

    def messages(self, partition: int, start: int, until: int) -> Iterator[tuple[int, Message]]:
        """What is at the offsets from `start` up to `until` (exclusive), not decoded.

        Raises:
            CausalLogDamaged: `start` was truncated.
            BrokerUnavailable: No answer in time.
        """
        if start >= until:
            return
        self._consumer.assign([TopicPartition(self.topic, partition, start)])
        deadline = time.monotonic() + _TIMEOUT_S
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
                            hint="something truncated the log: restore it, or start a new lineage to a new output.",
                        )
                    elif error.code() in REFUSALS or (error.fatal() and not error.retriable()):
                        raise unanswered(f"The log {self.topic} cannot be read", error)
                if any(message.error() is None for message in batch):
                    deadline = time.monotonic() + _TIMEOUT_S
                elif time.monotonic() > deadline:
                    raise BrokerUnavailable(f"The log {self.topic}[{partition}] did not answer in {_TIMEOUT_S:.0f} s.")
        finally:
            self._consumer.unassign()

    def _batch(self) -> list[Message]:
        """What is there, waiting for the first only (`consume` would wait for all or the timeout)."""
        first = self._consumer.poll(0.5)
        return [] if first is None else [first, *self._consumer.consume(num_messages=500, timeout=0)]

    def tail(self, partition: int, *, visible: int = -1) -> Tail | None:
        """The newest claim or marker, scanning back until one is found; None only if nothing was ever written.

        Args:
            partition: Which one.
            visible: An offset that was committed and must be visible first. A commit is answered when it is
                decided; the marker that makes it visible in the partition follows a moment later. (After
                ``init_transactions()`` there is nothing to wait for.)

        Raises:
            CausalLogDamaged: The partition holds, or held, records but no claim or marker (invariant 8).
        """
        low, end = self._bounds_beyond(partition, visible)
        look_back = _FIRST_LOOK_BACK
        until = end
        while True:
            start = max(low, end - look_back)
            newest: Tail | None = None
            for offset, record in self.stretch(partition, start, until):
                if isinstance(record, Claim | Marker):
                    newest = Tail(offset, record, end)
            if newest is not None:
                return newest
            if start == low:
                if low == 0 and end == 0:
                    return None
                if low == 0 and not any(True for _ in self.stretch(partition, 0, end)):
                    return None  # only aborted transactions so far
                raise CausalLogDamaged(
                    f"The log {self.topic}[{partition}] ends at {end} but holds no claim or marker.",
                    hint="something truncated the log: restore it, or start a new lineage to a new output.",
                )
            until = start
            look_back *= 4

    def own_tail(self, partition: int, owner: Owner, whose: str, *, known: int = -1) -> Tail | None:
        """The tail of a lane's partition, which must be `owner`'s.

        Args:
            partition: Which one.
            owner: Who may go on.
            whose: What the lane is called in errors.
            known: Where the newest claim or marker that `owner` wrote stands; -1 if it must be read.

        Returns:
            None if it is the one at `known`, and nothing at all came after it.

        Raises:
            Superseded: It is somebody else's.
            CausalLogDamaged: Nothing is there: never assume.
        """
        if known >= 0 and self.bounds(partition)[1] == known + _TRANSACTION_OF_ONE:
            return None
        tail = self.tail(partition)
        if tail is None:
            raise CausalLogDamaged(
                f"{whose} has no claim in {self.topic}[{partition}].",
                hint="something deleted the log: restore it, or start a new lineage to a new output.",
            )
        if tail.record.owner != owner:
            raise Superseded(f"Generation {tail.record.owner} owns {whose}; this was {owner}.")
        return tail

    def _bounds_beyond(self, partition: int, visible: int) -> tuple[int, int]:
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            low, end = self.bounds(partition)
            if end > visible:
                return low, end
            if time.monotonic() > deadline:
                raise BrokerUnavailable(
                    f"{self.topic}[{partition}] did not show the committed offset {visible} in {_TIMEOUT_S:.0f} s."
                )
            self._consumer.poll(0.001)

    def close(self) -> None:
        """Release the client."""
        self._consumer.close()


class _Readers(threading.local):
    reader: LogReader | None = None
    key: object = None


_readers = _Readers()


def shared_reader(kafka: KafkaSettings, topic: str) -> LogReader:
    """This thread's reader of `topic`, made once: a consumer takes longer to connect than to read a tail."""
    key = (kafka.bootstrap_servers, topic)
    if _readers.key != key or _readers.reader is None:
        _readers.reader = LogReader(kafka, topic)
        _readers.key = key
    return _readers.reader
