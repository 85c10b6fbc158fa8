"""Records on their way: a steady load, a read_committed reader, and what the output says against the input."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.outages.platform import PATIENCE_S
from bench.subjects import PARTITIONS
from clonos.kafka import client_config
from clonos.settings import KafkaSettings

RATE: Final = 200
KEYS: Final = 50
_AGAIN: Final = 20
# Numbers after which one is sent again: a dozen seconds, so that most have seen a kill in between.
_LATER: Final = 2_400


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as a reader saw it.

    Attributes:
        count: The how manieth of its key the job says that it is; 0 if it does not count.
    """

    at: float
    number: int
    count: int


class Reader:
    """Reads the output as a read_committed consumer does, and remembers all of it."""

    def __init__(self, kafka: KafkaSettings, topic: str) -> None:
        self.rows: list[Seen] = []
        self.numbers: set[int] = set()
        self._stop = threading.Event()
        self._consumer = Consumer(
            client_config(
                kafka,
                group_id="bench-recovery",
                isolation_level="read_committed",
                enable_auto_commit=False,
                fetch_wait_max_ms=5,
                fetch_error_backoff_ms=1,
                fetch_queue_backoff_ms=1,
            )
        )
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                number, _, count = (message.value() or b"-1").partition(b" ")
                self.rows.append(Seen(time.monotonic(), int(number), int(count or 0)))
                self.numbers.add(int(number))
        self._consumer.close()

    def after(self, moment: float) -> float:
        """When the first record after `moment` came.

        Raises:
            TimeoutError: None came.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            rows = self.rows
            if rows and rows[-1].at > moment:
                return min(one.at for one in rows[-5000:] if one.at > moment)
            if time.monotonic() > deadline:
                raise TimeoutError(f"no record in {PATIENCE_S:g} s")
            time.sleep(0.001)

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        self._thread.join()


class Load:
    """Produces numbers, `RATE` a second, over a few keys.

    Args:
        kafka: The cluster.
        topic: Where to.
        again: One in twenty is sent again later, between the others: for a job that lets each through once.
    """

    def __init__(self, kafka: KafkaSettings, topic: str, *, again: bool = False) -> None:
        self.sent = 0
        self._again = again
        self._stop = threading.Event()
        self._producer = Producer(client_config(kafka, linger_ms=0, enable_idempotence=True))
        self._topic = topic
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            self._send(self.sent)
            if self._again and self.sent % _AGAIN == 0 and self.sent >= _LATER:
                self._send(self.sent - _LATER)
            self.sent += 1
            due += 1 / RATE
            time.sleep(max(0.0, due - time.monotonic()))

    def _send(self, number: int) -> None:
        key = number % KEYS
        self._producer.produce(self._topic, str(number), f"k{key}", partition=key % PARTITIONS)
        self._producer.poll(0)

    def close(self) -> None:
        """Stop; all is sent then."""
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join()
            assert self._producer.flush(30) == 0


def verdict(rows: Iterable[Seen], sent: int) -> dict[str, int]:
    """What the output says against the input.

    Returns:
        ``duplicates``, ``lost``, ``order_breaks`` within a key; ``state_breaks``: records of a job that counts, whose
        count is not that of an uninterrupted run.
    """
    counts: Counter[int] = Counter()
    newest: dict[int, int] = {}
    breaks = miscounted = 0
    for one in rows:
        counts[one.number] += 1
        key = one.number % KEYS
        breaks += one.number < newest.get(key, -1)
        newest[key] = max(one.number, newest.get(key, -1))
        miscounted += one.count not in (0, one.number // KEYS + 1)
    return {
        "records": sent,
        "duplicates": sum(count - 1 for count in counts.values()),
        "lost": sum(number not in counts for number in range(sent)),
        "order_breaks": breaks,
        "state_breaks": miscounted,
    }
