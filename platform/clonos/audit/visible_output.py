"""What `read_committed` readers see of a job's output."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from clonos.audit.multiset import Sum, content_hash
from clonos.deadline import Deadline
from clonos.errors import BrokerUnavailable
from clonos.kafka import about_the_group, assigned_reader, unanswered
from clonos.partition_offsets import partition_bounds
from clonos.settings import KafkaSettings

_TIMEOUT_S: Final = 20.0
_MOST_RUNS: Final = 1000  # for each partition; a log keeps a few hundred epochs
_MOST_TRIED: Final = 20_000  # combinations of partitions for one transaction

# Called with the number of records that were read so far, and of those to read.
OnRead = Callable[[int, int], None]


class Earlier(NamedTuple):
    """The sums of an output before its last transactions."""

    sums: list[Sum]
    """The oldest first, up to the first transaction that is not found."""
    fits: bool
    """Whether that is all, or what is left of the output has fewer records than that transaction."""


class VisibleOutput:
    """Reads topics from their first offsets, and adds up what it has read; `on_read` is called for a snapshot.

    Raises:
        BrokerUnavailable: Kafka did not answer.
    """

    def __init__(self, kafka: KafkaSettings, topics: Collection[str], on_read: OnRead) -> None:
        self.topics = sorted(topics)
        self._on_read = on_read
        self._consumer = assigned_reader(
            kafka, group="clonos-audit", enable_partition_eof=True, auto_offset_reset="error"
        )
        self._positions: dict[tuple[str, int], int] = {}
        self._first = 0  # sum of the partitions' first offsets
        self._sum = Sum()
        # Partition → sums of records without a gap in their offsets. Each transaction ends with a gap.
        self._runs: dict[tuple[str, int], deque[Sum]] = {}
        self._read_up_to: dict[tuple[str, int], int] = {}
        self.complete = True  # whether the topics hold all records that were ever written to them
        for topic, partition in self._partitions():
            low, _ = self._bounds(topic, partition)
            self._positions[topic, partition] = low
            self._first += low
            self.complete = self.complete and low == 0

    def _partitions(self) -> Iterator[tuple[str, int]]:
        for topic in self.topics:
            try:
                metadata = self._consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
            except KafkaException as error:
                raise unanswered("Kafka did not answer", error.args[0]) from error
            if metadata.error is not None and metadata.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise unanswered(f"{topic} cannot be read", metadata.error)
            if metadata.error is not None:  # it was deleted, for instance an earlier topic of dead letters
                self.complete = False
            for partition in metadata.partitions:
                yield topic, partition

    def _bounds(self, topic: str, partition: int) -> tuple[int, int]:
        try:
            return partition_bounds(self._consumer, topic, partition, timeout_s=_TIMEOUT_S)
        except KafkaException as error:
            raise unanswered(f"{topic}[{partition}] cannot be read", error.args[0]) from error

    def snapshot(self) -> Sum:
        """Read up to the last stable offsets of now; returns the sum of all records so far. Raises as the class."""
        ends = {place: self._bounds(*place)[1] for place in self._positions}
        due = {place: end for place, end in ends.items() if self._positions[place] < end}
        if due:
            self._consumer.assign([TopicPartition(*place, self._positions[place]) for place in due])
            deadline = Deadline(_TIMEOUT_S)
            while due:
                for message in self._consumer.consume(num_messages=500, timeout=0.1):
                    deadline = Deadline(_TIMEOUT_S)
                    self._take(message, due)
                self._on_read(sum(self._positions.values()) - self._first, sum(ends.values()) - self._first)
                if deadline.passed():
                    raise BrokerUnavailable(f"{sorted(due)[0][0]} was not read to its end in {_TIMEOUT_S:.0f} s.")
            self._consumer.unassign()
        return self._sum

    def _take(self, message: Message, due: dict[tuple[str, int], int]) -> None:
        place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
        error = message.error()
        if error is not None and about_the_group(error):
            return
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise unanswered(f"{place[0]}[{place[1]}] cannot be read", error)
        end = due.get(place)
        if end is None:
            return
        if error is None and offset < end:
            record = Sum(1, content_hash(message))
            self._sum = self._sum.plus(record)
            runs = self._runs.setdefault(place, deque(maxlen=_MOST_RUNS))
            if runs and self._read_up_to.get(place) == offset:
                runs[-1] = runs[-1].plus(record)
            else:
                runs.append(record)
            self._read_up_to[place] = offset + 1
        self._positions[place] = min(end, offset if error is not None else offset + 1)
        if self._positions[place] >= end:
            self._positions[place] = end
            del due[place]

    def earlier(self, published: Iterable[Sum]) -> Earlier:
        """Return the sums of the output before its last transactions, each of which published one of the sums, newest
        first.

        The records of a transaction are the last run of some partitions, unless transactions overlapped. So this finds
        nothing for lanes that tasks publish.
        """
        runs = {place: list(sums) for place, sums in self._runs.items()}
        now, earlier = self._sum, list[Sum]()
        for transaction in published:
            last = {place: sums[-1] for place, sums in runs.items() if sums}
            places = _adding_up(list(last.items()), transaction, [_MOST_TRIED])
            if places is None:
                left = sum(run.records for sums in runs.values() for run in sums)
                return Earlier(earlier, fits=left < transaction.records)
            for place in places:
                runs[place].pop()
            now = now.minus(transaction)
            earlier.insert(0, now)
        return Earlier(earlier, fits=True)

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


def _adding_up(
    runs: Sequence[tuple[tuple[str, int], Sum]], wanted: Sum, left: list[int]
) -> list[tuple[str, int]] | None:
    """Return the partitions whose runs add up to `wanted`; None if `left` attempts do not find any."""
    if wanted == Sum():
        return []
    left[0] -= 1
    for number, (place, run) in enumerate(runs):
        if left[0] > 0 and run.records <= wanted.records:
            rest = _adding_up(runs[number + 1 :], wanted.minus(run), left)
            if rest is not None:
                return [place, *rest]
    return None
