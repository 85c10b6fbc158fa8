"""The output of the demo as a read_committed reader sees it, with the time of each arrival."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence

from confluent_kafka import Message

from clonos.settings import KafkaSettings
from clonos.testing.harness import CommittedReader
from clonos_demo.evidence import Published, Sourced, decode_sourced


def longest_gap(arrivals: Iterable[float], *, until: float) -> float:
    """Return the longest time without an arrival in seconds, from the first arrival to `until` (the end of the input).

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
    """Follows output topics from their beginning and records the time of each arrival.

    Args:
        kafka: The Kafka cluster.
        topics: The number of partitions of each topic.
        watched: The topic whose arrivals the demo waits for and measures.
    """

    def __init__(self, kafka: KafkaSettings, topics: dict[str, int], *, watched: str) -> None:
        self._watched = watched
        self._records: dict[str, list[Published]] = {topic: [] for topic in topics}
        self._positions: set[Sourced | None] = set()
        self._newest = 0.0
        self._seconds: Counter[int] = Counter()
        self._reader = CommittedReader(kafka, topics, self.take, fetch_wait_ms=20)
        self.start, self.stop, self.drain = self._reader.start, self._reader.stop, self._reader.drain
        self.repeats = 0
        """How many records of the watched topic were for a position already seen."""

    def count(self, topic: str) -> int:
        """Return the number of records of `topic` that have arrived."""
        return len(self._records[topic])

    def records(self, topic: str) -> list[Published]:
        """All records of `topic` that have arrived, in order of arrival."""
        return list(self._records[topic])

    def arrivals(self) -> Sequence[float]:
        """Arrival times of the watched topic's records, in seconds of the monotonic clock."""
        return [record.arrived for record in self.records(self._watched)]

    def per_second(self, seconds: int) -> list[int]:
        """Return the number of records of the watched topic that arrived in each of the last `seconds` seconds, oldest
        first.
        """
        now = int(time.monotonic())
        return [self._seconds[second] for second in range(now - seconds + 1, now + 1)]

    def last_arrival(self) -> float:
        """Time of the last arrival in any topic, in seconds of the monotonic clock; 0 before the first."""
        return max((records[-1].arrived for records in self._records.values() if records), default=0.0)

    def await_more(self, timeout_s: float) -> bool:
        """Wait for another record of the watched topic; False after the timeout."""
        before = self.count(self._watched)
        return self._reader.wait_for(lambda: self.count(self._watched) > before, timeout_s)

    def await_written_after(self, moment: float, timeout_s: float) -> float | None:
        """Wait for a record of the watched topic that was produced after `moment`, in seconds since 1970.

        Such a record comes from the driver after a kill at that moment; records that the killed driver committed may
        still be on their way to readers.

        Returns:
            The arrival of the first of these records, by the monotonic clock; None after the timeout.
        """
        self._reader.wait_for(lambda: self._newest > moment, timeout_s)
        return next((record.arrived for record in self.records(self._watched) if record.written > moment), None)

    def take(self, message: Message, arrived: float) -> None:
        """Record the arrival of one consumed `message` at time `arrived` (monotonic clock, in seconds)."""
        topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
        value = bytes(message.value() or b"")
        headers: list[tuple[str, bytes | None]] = message.headers() or []  # type: ignore[assignment]  # its stub allows more
        written = message.timestamp()[1] / 1000
        contents = {name: content or b"" for name, content in headers}
        self._records[topic].append(Published(topic, partition, offset, value, contents, arrived, written))
        if topic == self._watched:
            self._newest = max(self._newest, written)
            self._seconds[int(arrived)] += 1
            position = decode_sourced(value)
            self.repeats += position in self._positions
            self._positions.add(position)
