"""The input of the demo: records at a steady rate. A record counts as input once Kafka acknowledges it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from confluent_kafka import KafkaError, Message, Producer

from clonos.errors import BrokerUnavailable
from clonos.kafka import SEQUENTIAL, client_config, undelivered
from clonos.settings import KafkaSettings
from clonos_demo.evidence import Sent


class SteadyProducer:
    """Produces `messages` (key and value) to `topic` in a background thread, `per_second` records per second.

    Equal keys go to one partition. Only acknowledged records count as input.
    """

    def __init__(
        self, kafka: KafkaSettings, topic: str, messages: Iterator[tuple[str, bytes]], *, per_second: float
    ) -> None:
        self._producer = Producer(client_config(kafka, **SEQUENTIAL, linger_ms=0, log_level=0))
        self._topic = topic
        self._messages = messages
        self._pause_s = 1.0 / per_second
        self._acked: list[Sent] = []
        self._refused: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce, name=f"produce-{topic}", daemon=True)

    def start(self) -> None:
        """Start producing in a background thread."""
        self._thread.start()

    @contextmanager
    def slowly(self, per_second: float) -> Iterator[None]:
        """Limit the rate to `per_second` records per second inside the context."""
        pause_s, self._pause_s = self._pause_s, max(self._pause_s, 1.0 / per_second)
        try:
            yield
        finally:
            self._pause_s = pause_s

    @property
    def acked(self) -> int:
        """Number of records that Kafka acknowledged so far."""
        return len(self._acked)

    def stop(self) -> list[Sent]:
        """Stop sending, wait for the last acknowledgements and return every acknowledged record."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        unanswered = self._producer.flush(30.0)
        if unanswered or self._refused:
            reason = self._refused[0] if self._refused else "no acknowledgement within 30 s"
            # A record of unknown fate may be in the topic or not, so no verdict could be fair.
            raise BrokerUnavailable(f"Kafka did not take {unanswered + len(self._refused)} records: {reason}.")
        return list(self._acked)

    def abandon(self) -> None:
        """Stop producing without a check of the acknowledgements, after a failure. After `stop` it does nothing."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _produce(self) -> None:
        due = time.monotonic()
        for key, value in self._messages:
            due += self._pause_s
            if self._stop.wait(max(0.0, due - time.monotonic())):
                return
            answer = partial(self._delivered, value, time.monotonic())
            self._producer.produce(self._topic, value=value, key=key.encode(), on_delivery=answer)
            self._producer.poll(0)

    def _delivered(self, value: bytes, at: float, error: KafkaError | None, message: Message) -> None:
        refusal = undelivered(error, message)
        if refusal is not None:
            self._refused.append(refusal)
        else:
            self._acked.append(Sent(self._topic, message.partition() or 0, message.offset() or 0, value, at))
