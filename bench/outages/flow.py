"""A steady load, a read_committed reader of the output, and the comparison of output and input."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, Message, Producer

from bench.subjects import PARTITIONS
from clonos.kafka import SEQUENTIAL, client_config, undelivered
from clonos.settings import KafkaSettings
from clonos.testing.harness import CommittedReader
from clonos.testing.harness.platform import TIMEOUT_S

RATE: Final = 200
KEYS: Final = 50
_REPEAT_EVERY: Final = 20
# Twelve seconds, so that most repetitions come after a kill.
_REPEAT_AFTER: Final = 2_400


@dataclass(frozen=True, slots=True)
class Row:
    """A record of the output.

    Attributes:
        at: Its arrival, in seconds of the monotonic clock.
        number: Its number in the input.
        count: The number of records of its key so far, as a stateful job counts them; 0 for other jobs.
    """

    at: float
    number: int
    count: int


class Reader:
    """Follows the output read_committed and keeps every row."""

    def __init__(self, kafka: KafkaSettings, topic: str) -> None:
        self.rows: list[Row] = []
        self.numbers: set[int] = set()
        self._reader = CommittedReader(kafka, {topic: PARTITIONS}, self._take)
        self._reader.start()
        self.close = self._reader.stop

    def _take(self, message: Message, arrived: float) -> None:
        number, _, count = (message.value() or b"-1").partition(b" ")
        self.rows.append(Row(arrived, int(number), int(count or 0)))
        self.numbers.add(int(number))

    def after(self, moment: float) -> float:
        """The arrival of the first row after `moment`.

        Raises:
            TimeoutError: No row arrived in time.
        """
        if not self._reader.wait_for(lambda: bool(self.rows) and self.rows[-1].at > moment, TIMEOUT_S):
            raise TimeoutError(f"no record in {TIMEOUT_S:g} s")
        return min(row.at for row in self.rows[-5000:] if row.at > moment)


class Load:
    """Produces numbers over a few keys.

    Args:
        kafka: The Kafka cluster.
        topic: The input topic.
        repeats: Every twentieth number is sent again later, for a job that removes duplicates.
        rate: Numbers per second.

    Attributes:
        sent: The number of numbers that were sent.
        sent_at: For each number the time, in seconds of the monotonic clock.
    """

    def __init__(self, kafka: KafkaSettings, topic: str, *, repeats: bool = False, rate: float = RATE) -> None:
        self.sent = 0
        self.sent_at: list[float] = []
        self._rate = rate
        self._repeats = repeats
        self._stop = threading.Event()
        self._producer = Producer(client_config(kafka, linger_ms=0, **SEQUENTIAL))
        self._failures: list[str] = []
        self._topic = topic
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            self.sent_at.append(time.monotonic())
            self._send(self.sent)
            if self._repeats and self.sent % _REPEAT_EVERY == 0 and self.sent >= _REPEAT_AFTER:
                self._send(self.sent - _REPEAT_AFTER)
            self.sent += 1
            due += 1 / self._rate
            time.sleep(max(0.0, due - time.monotonic()))

    def _send(self, number: int) -> None:
        key = number % KEYS
        partition = key % PARTITIONS
        self._producer.produce(self._topic, str(number), f"k{key}", partition=partition, on_delivery=self._delivered)
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if (failure := undelivered(error, message)) is not None:
            self._failures.append(failure)

    def close(self) -> None:
        """Stop, and wait until everything is acknowledged."""
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join()
            assert self._producer.flush(30) == 0
            assert not self._failures


def verdict(rows: Iterable[Row], sent: int, *, ordered: bool = True) -> dict[str, int]:
    """Compare the output with the input.

    Args:
        rows: The output, in the reader's order.
        sent: Number of input records.
        ordered: Whether the job keeps the order within a key. A job that shuffles by other columns does not.

    Returns:
        ``duplicates``, ``lost``, ``order_breaks`` within a key; ``state_breaks``: records of a counting job with
        another count than in an uninterrupted run.
    """
    counts: Counter[int] = Counter()
    newest: dict[int, int] = {}
    breaks = miscounted = 0
    for row in rows:
        counts[row.number] += 1
        key = row.number % KEYS
        breaks += ordered and row.number < newest.get(key, -1)
        newest[key] = max(row.number, newest.get(key, -1))
        miscounted += row.count not in (0, row.number // KEYS + 1)
    return {
        "records": sent,
        "duplicates": sum(count - 1 for count in counts.values()),
        "lost": sum(number not in counts for number in range(sent)),
        "order_breaks": breaks,
        "state_breaks": miscounted,
    }
