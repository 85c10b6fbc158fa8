"""The input of the demo: lines at a steady pace, each counted when Kafka acknowledges it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from clonos.demo.evidence import Line
from clonos.errors import BrokerUnavailable, SpecError
from clonos.kafka import client_config
from clonos.settings import KafkaSettings


def text_lines(file: Path) -> list[str]:
    """The lines of a text file, without empty ones and comments (``#``).

    Raises:
        SpecError: The file holds no line.
    """
    lines = [row.strip() for row in file.read_text(encoding="utf-8").splitlines()]
    lines = [row for row in lines if row and not row.startswith("#")]
    if not lines:
        raise SpecError(f"{file} holds no text to send.")
    return lines


class SteadyProducer:
    """Sends the text again and again from a thread of its own, `per_second` lines a second.

    Every record has a unique id as its key and goes to the next partition in turn.
    Only what was acknowledged counts as input.
    """

    def __init__(
        self, kafka: KafkaSettings, topic: str, text: Sequence[str], *, per_second: float, partitions: int
    ) -> None:
        self._producer = Producer(client_config(kafka, enable_idempotence=True, linger_ms=0, log_level=0))
        self._topic = topic
        self._text = text
        self._pause_s = 1.0 / per_second
        self._partitions = partitions
        self._acked: list[Line] = []
        self._refused: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce, name=f"produce-{topic}", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    @property
    def acked(self) -> int:
        """How many lines Kafka acknowledged so far."""
        return len(self._acked)

    def stop(self) -> list[Line]:
        """Stop sending, wait for the last acknowledgements and return every acknowledged line.

        Raises:
            BrokerUnavailable: Kafka refused lines, or did not acknowledge them in time.
        """
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        unanswered = self._producer.flush(30.0)
        if unanswered or self._refused:
            reason = self._refused[0] if self._refused else "no acknowledgement within 30 s"
            # A line of unknown fate may be in the topic or not, so no verdict could be fair.
            raise BrokerUnavailable(f"Kafka did not take {unanswered + len(self._refused)} lines: {reason}.")
        return list(self._acked)

    def abandon(self) -> None:
        """Stop sending, without a word on what was sent; harmless after `stop`."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _produce(self) -> None:
        due = time.monotonic()
        for number, text in enumerate(itertools.cycle(self._text)):
            due += self._pause_s
            if self._stop.wait(max(0.0, due - time.monotonic())):
                return
            self._producer.produce(
                self._topic,
                value=text.encode(),
                key=f"line-{number}".encode(),
                partition=number % self._partitions,
                on_delivery=partial(self._delivered, text),
            )
            self._producer.poll(0)

    def _delivered(self, text: str, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is not None or partition is None or offset is None:
            self._refused.append(error.str() if error is not None else "an acknowledgement without an offset")
        else:
            self._acked.append(Line(self._topic, partition, offset, text))
