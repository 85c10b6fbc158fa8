"""The output of the demo as a reader sees it meanwhile: read_committed, with the time of each arrival."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from clonos.demo.evidence import Published, read_place
from clonos.errors import BrokerUnavailable
from clonos.kafka import client_config
from clonos.settings import KafkaSettings


def longest_gap(arrivals: Iterable[float], *, until: float) -> float:
    """The longest time without an arrival, from the first one to `until` (the end of the input).

    The gap that is open at `until` counts with its full length, since it began while input was flowing.
    Arrivals must be in order of time.
    """
    longest, previous = 0.0, None
    for moment in arrivals:
        if previous is not None:
            longest = max(longest, moment - previous)
        if moment >= until:
            return longest
        previous = moment
    return longest if previous is None else max(longest, until - previous)


class OutputReader:
    """Follows output topics from their beginning in a thread of its own.

    Args:
        kafka: How to reach Kafka.
        topics: The topics to follow, each with its number of partitions.
        watched: The topic whose arrivals are waited for and measured.
    """

    def __init__(self, kafka: KafkaSettings, topics: dict[str, int], *, watched: str) -> None:
        self._partitions = {(topic, number) for topic, count in topics.items() for number in range(count)}
        self._watched = watched
        self._records: dict[str, list[Published]] = {topic: [] for topic in topics}
        self._places: set[Hashable] = set()
        self._repeats = 0
        self._newest = 0.0
        self._seconds: Counter[int] = Counter()
        self._at_end: set[tuple[str, int]] = set()
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._failure: str | None = None
        self._consumer = Consumer(
            client_config(
                kafka,
                group_id=f"clonos-demo-{watched}",
                isolation_level="read_committed",
                enable_auto_commit=False,
                enable_partition_eof=True,
                fetch_wait_max_ms=20,
                log_level=0,  # the screen is for the story; a lost Kafka is raised
            )
        )
        self._thread = threading.Thread(target=self._follow, name=f"read-{watched}", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in self._partitions])
        self._thread.start()

    def stop(self) -> None:
        """Stop reading."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._consumer.close()

    def count(self, topic: str | None = None) -> int:
        """How many records arrived, of the watched topic or of `topic`."""
        return len(self._records[topic or self._watched])

    @property
    def repeats(self) -> int:
        """How many records of the watched topic were for a place already seen."""
        return self._repeats

    def records(self, topic: str) -> list[Published]:
        """All records of `topic` so far."""
        return list(self._records[topic])

    def arrivals(self) -> Sequence[float]:
        """When the watched topic's records arrived."""
        return [record.arrived for record in self.records(self._watched)]

    def per_second(self, seconds: int) -> list[int]:
        """How many records of the watched topic arrived in each of the last `seconds` seconds, oldest first."""
        now = int(time.monotonic())
        return [self._seconds[second] for second in range(now - seconds + 1, now + 1)]

    def last_arrival(self) -> float:
        """When anything arrived last; 0 if nothing did."""
        return max((records[-1].arrived for records in self._records.values() if records), default=0.0)

    def wait_beyond(self, count: int, timeout_s: float) -> bool:
        """Wait until the watched topic has more than `count` records; False when the time is over first.

        Raises:
            BrokerUnavailable: The reader lost Kafka.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.count() > count or self._failure is not None, timeout_s)
            self._raise_failure()
            return self.count() > count

    def await_written_after(self, moment: float, timeout_s: float) -> float | None:
        """Wait for a record of the watched topic that was made after `moment`, in seconds since 1970.

        So it is the work of whoever drives after a kill at that moment; what the killed driver had committed may still
        be on its way to readers.

        Returns:
            When the first one of those that are here arrived, by the monotonic clock; None when the time is over first.

        Raises:
            BrokerUnavailable: The reader lost Kafka.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._newest > moment or self._failure is not None, timeout_s)
            self._raise_failure()
            return next((one.arrived for one in self._records[self._watched] if one.written > moment), None)

    def drain(self, *, quiet_s: float = 0.5, timeout_s: float = 30.0) -> bool:
        """Once nobody writes any more: wait until the end of every partition was read; False if it never was.

        Raises:
            BrokerUnavailable: The reader lost Kafka.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while time.monotonic() < deadline:
                # The end of a partition is told once, so wait for a stretch in which nothing takes it back.
                if not self._changed.wait(quiet_s) and self._at_end == self._partitions:
                    return True
                self._raise_failure()
        return False

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise BrokerUnavailable(f"The reader of the output lost Kafka: {self._failure}.")

    def _follow(self) -> None:
        while not self._stop.is_set():
            messages = self._consumer.consume(500, timeout=0.05)
            if not messages:
                continue
            arrived = time.monotonic()
            with self._changed:
                for message in messages:
                    self._take(message, arrived)
                self._changed.notify_all()

    def _take(self, message: Message, arrived: float) -> None:
        topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                self._at_end.add((topic, partition))
            elif error.fatal() or not error.retriable():
                self._failure = error.str()
            return
        self._at_end.discard((topic, partition))
        value = message.value() or b""
        headers: list[tuple[str, bytes | None]] = message.headers() or []  # type: ignore[assignment]  # its stub allows more
        written = message.timestamp()[1] / 1000
        known = {name: content or b"" for name, content in headers}
        self._records[topic].append(Published(topic, partition, offset, bytes(value), known, arrived, written))
        if topic == self._watched:
            self._newest = max(self._newest, written)
            self._seconds[int(arrived)] += 1
            place = read_place(bytes(value))
            if place in self._places:
                self._repeats += 1
            self._places.add(place)
