"""Waits for the systems that a job depends on. Their outage, however long, is not a failure of the job."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from clonos.driver.background import Watch
from clonos.errors import BrokerUnavailable
from clonos.kafka import await_brokers, client_config
from clonos.settings import KafkaSettings
from clonos.telemetry.driver_events import Kafka
from clonos.telemetry.events import Emit

# Without an answer for this time, Kafka is away. A shorter pause, such as for a new leader, is not reported.
OUTAGE_S: Final = 10.0
_EVERY_S: Final = 1.0
_ANSWER_S: Final = 1.5
_RETRY_S: Final = 1.0
_MISSING_ANSWERS: Final = 3
# Errors of the client: no broker has answered.
_SILENT: Final = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE}
)


def wait_for_kafka(kafka: KafkaSettings, *, stopped: Callable[[], bool]) -> bool:
    """Wait until a broker answers, without a limit; returns False once `stopped` returns True.

    Raises:
        KafkaAccessDenied: A broker refused access.
    """
    while not stopped():
        with contextlib.suppress(BrokerUnavailable):
            await_brokers(kafka, timeout_s=_RETRY_S)
            return True
    return False


class KafkaWatch(Watch):
    """Asks Kafka in the background whether it answers. Spark's own client waits for minutes before it reports.

    Args:
        kafka: The Kafka cluster.
        emit: Receives a ``kafka`` event for each change of what Kafka answers.
        log: Topic of the job's causal log, whose replicas are counted.
        every_s: Pause between two requests, in seconds.
    """

    def __init__(self, kafka: KafkaSettings, emit: Emit | None = None, *, log: str, every_s: float = _EVERY_S) -> None:
        super().__init__("clonos-kafka-watch", every_s)
        self._kafka = kafka
        self._admin: AdminClient | None = None
        self._emit = emit
        self._log = log
        self._answered_at = time.monotonic()
        self._silent_since: float | None = None
        self._outage_at = float("-inf")  # end of the newest outage
        self._brokers = 0
        self._under_replicated = 0
        self._claimed = False  # whether the job has claimed the log
        self._log_missing = 0  # consecutive answers without the log's topic, after a claim
        self._reported: tuple[bool, int, int] | None = None

    def note_claim(self) -> None:
        """Take notice of a claim: the log exists, and what Kafka answers is emitted again for the new generation."""
        self._claimed = True
        self._reported = None

    @property
    def is_away(self) -> bool:
        """Whether Kafka has not answered for `OUTAGE_S`."""
        since = self._silent_since
        return since is not None and time.monotonic() - since > OUTAGE_S

    @property
    def is_log_deleted(self) -> bool:
        """Whether several answers in a row lack the topic of the log, which the job has claimed; a broker may lag."""
        return self._log_missing >= _MISSING_ANSWERS

    def was_silent_within(self, seconds: float) -> bool:
        """Whether a request was not answered in these last seconds, so that other requests may have failed too."""
        return self._silent_since is not None or time.monotonic() - self._outage_at < seconds

    def poll_once(self) -> None:
        """Ask once, and report a change."""
        self._admin = self._admin or AdminClient(client_config(self._kafka))
        if self._request(self._admin):
            self._answered_at = time.monotonic()
            if self._silent_since is not None:
                self._outage_at, self._silent_since = self._answered_at, None
        else:
            self._silent_since = self._silent_since or self._answered_at
        self._report()

    def _request(self, admin: AdminClient) -> bool:
        """Request the metadata of the log's topic; returns whether a broker answered.

        Not `describe_cluster`: librdkafka aborts the process if the answer has no broker, as that of a broker whose
        controller has just lost it (an assertion in ``rd_kafka_admin_response_parse``).
        """
        try:
            metadata = admin.list_topics(self._log, timeout=_ANSWER_S)
        except KafkaException as failure:
            return failure.args[0].code() not in _SILENT
        self._brokers = len(metadata.brokers) or self._brokers
        topic = metadata.topics.get(self._log)
        missing = topic is None or (topic.error is not None and topic.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART)
        self._log_missing = self._log_missing + 1 if missing and self._claimed else 0
        if topic is not None and topic.error is None:  # before the first claim there is no log
            self._under_replicated = sum(len(part.isrs) < len(part.replicas) for part in topic.partitions.values())
        return True

    def _report(self) -> None:
        silent = self._silent_since
        state = (silent is not None, self._brokers, self._under_replicated)
        if self._emit is None or state == self._reported or self._stopped.is_set():
            return
        self._reported = state
        since = None if silent is None else time.time() - (time.monotonic() - silent)
        self._emit(Kafka(silent_since=since, brokers=self._brokers, under_replicated=self._under_replicated))
