"""Kafka connections that a standby opens before it claims the causal log, so that the claim is fast.

The connections do not affect the log's owner, because a producer that has not called ``init_transactions()`` fences no
other producer.
"""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaException, Producer

from clonos.errors import BrokerUnavailable
from clonos.kafka import topics_missing
from clonos.log.control import ControlFollower, ControlState, control_id, lane_id
from clonos.log.reading import LogReader
from clonos.log.topic import ensure_log_topic, log_topic
from clonos.log.transaction import connect, dispose, producer_config
from clonos.settings import KafkaSettings

PARALLEL_CLAIMS: Final = 16  # lanes that a claim reads at once, each with a reader
_TIMEOUT_S = 5.0


class Prepared:
    """The connections that are open before a claim of one job's causal log."""

    def __init__(self, kafka: KafkaSettings, job: str) -> None:
        self._kafka = kafka
        self._job = job
        self._producers: dict[str, Producer] = {}
        self._readers: list[LogReader] = []
        self.topic = ""  # the log's topic, checked; empty until `refresh` has found it
        self.state = ControlState()
        self.control = ControlFollower()  # reads the control partition

    def refresh(self) -> None:
        """Read the control partition, and open a producer for it and for each lane, and readers.

        For a job that never ran this does nothing.

        Raises:
            ClonosError: Kafka does not answer, or the log cannot be used.
        """
        if not self.topic:
            if topics_missing(self._kafka, [log_topic(self._job)]):
                return
            self.topic = ensure_log_topic(self._kafka, self._job)
        if not self._readers:
            self._readers = [LogReader(self._kafka, self.topic)]
        self.follow()
        ids = [control_id(self._job)]
        ids += [lane_id(self._job, sink, lane) for sink, lane in self.state.lanes]
        try:
            for transactional_id in ids:
                if transactional_id not in self._producers:
                    self._producers[transactional_id] = Producer(producer_config(self._kafka, transactional_id))
                # Also an existing producer: brokers close idle connections.
                connect(self._producers[transactional_id], self.topic, _TIMEOUT_S)
        except KafkaException as error:
            raise BrokerUnavailable(f"Kafka did not answer: {error.args[0].str()}.") from error
        while len(self._readers) < 1 + min(len(ids) - 1, PARALLEL_CLAIMS):
            self._readers.append(LogReader(self._kafka, self.topic))
            self._readers[-1].bounds(len(self._readers) - 1)

    def follow(self) -> None:
        """Read the new records of the control partition, if `refresh` has found the log."""
        if self._readers:
            self.state = self.control.catch_up(self._readers[0])

    def producer(self, transactional_id: str) -> Producer | None:
        """Hand over the open producer with this transactional id to the caller; None if there is none."""
        return self._producers.pop(transactional_id, None)

    def reader(self) -> LogReader | None:
        """Hand over an open reader of the log to the caller; None if none is left."""
        try:
            return self._readers.pop()
        except IndexError:
            return None

    def close(self) -> None:
        """Close the connections that were not handed over."""
        while self._producers:
            dispose(self._producers.popitem()[1])
        while (reader := self.reader()) is not None:
            reader.close()
