"""Connections that a claim will need, made while there is time for it.

Nothing here touches the log's owner: a producer that has not called ``init_transactions()`` fences nobody.
"""

from __future__ import annotations

from confluent_kafka import KafkaException, Producer

from clonos.errors import BrokerUnavailable
from clonos.kafka import topics_missing
from clonos.log.control import ControlFollower, ControlState, control_id, lane_id
from clonos.log.reading import LogReader
from clonos.log.topic import ensure_log_topic, log_topic
from clonos.log.transaction import connect, dispose, producer_config
from clonos.settings import KafkaSettings

_TIMEOUT_S = 5.0


class Prepared:
    """What a claim of one job's log finds ready.

    Args:
        kafka: The cluster.
        job: The job's name.

    Attributes:
        topic: The log's topic, checked; empty until `refresh` has found it.
        state: What control said when it was read last.
        control: Control, followed.
    """

    def __init__(self, kafka: KafkaSettings, job: str) -> None:
        self._kafka = kafka
        self._job = job
        self._producers: dict[str, Producer] = {}
        self._readers: list[LogReader] = []
        self.topic = ""
        self.state = ControlState()
        self.control = ControlFollower()

    def refresh(self) -> None:
        """Read control, and have a connection for it and for each lane. A job that never ran has none.

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
            for one in ids:
                if one not in self._producers:
                    self._producers[one] = Producer(producer_config(self._kafka, one))
                # Also those that are there: a broker closes what is idle.
                connect(self._producers[one], self.topic, _TIMEOUT_S)
        except KafkaException as error:
            raise BrokerUnavailable(f"Kafka did not answer: {error.args[0].str()}.") from error
        while len(self._readers) < len(ids):
            self._readers.append(LogReader(self._kafka, self.topic))
            self._readers[-1].bounds(len(self._readers) - 1)

    def follow(self) -> None:
        """Read what is new in control, once `refresh` has found it.

        Raises:
            ClonosError: Kafka does not answer, or the log cannot be used.
        """
        if self._readers:
            self.state = self.control.catch_up(self._readers[0])

    def producer(self, transactional_id: str) -> Producer | None:
        """The one for this id, which is then the caller's."""
        return self._producers.pop(transactional_id, None)

    def reader(self) -> LogReader | None:
        """One, which is then the caller's."""
        try:
            return self._readers.pop()
        except IndexError:
            return None

    def close(self) -> None:
        """Let all go."""
        while self._producers:
            dispose(self._producers.popitem()[1])
        while (one := self.reader()) is not None:
            one.close()
