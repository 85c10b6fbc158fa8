"""Checks the settings of the causal log's topic while a job runs: another tool may change them after the start."""

from __future__ import annotations

import contextlib
import threading
from typing import Final

from confluent_kafka.admin import AdminClient

from clonos.errors import BrokerLimit, ClonosError
from clonos.kafka import client_config
from clonos.log.topic import check_log_topic, log_topic
from clonos.settings import KafkaSettings
from clonos.telemetry.driver_events import LogTopicUnsafe
from clonos.telemetry.events import Emit

_EVERY_S: Final = 60.0


class LogTopicWatch:
    """Polls the topic's settings, and reports settings that let Kafka lose records of the log.

    The job continues: nothing is lost yet. Its next start is refused.

    Args:
        kafka: The Kafka cluster.
        job: The job's name.
        emit: Receives a ``log-topic-unsafe`` event for each change of the finding.
        every_s: Pause between two polls, in seconds.
    """

    def __init__(self, kafka: KafkaSettings, job: str, emit: Emit, *, every_s: float = _EVERY_S) -> None:
        self._kafka = kafka
        self._topic = log_topic(job)
        self._emit = emit
        self._every_s = every_s
        self._reported = ""
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start polling in a background thread."""
        threading.Thread(target=self._poll, daemon=True, name="clonos-log-topic").start()

    def stop(self) -> None:
        """Stop polling, without waiting for a poll in progress."""
        self._stopped.set()

    def _poll(self) -> None:
        admin: AdminClient | None = None
        while not self._stopped.wait(self._every_s):
            admin = admin or AdminClient(client_config(self._kafka))
            self.poll_once(admin)

    def poll_once(self, admin: AdminClient) -> None:
        """Poll once, and report a change. If Kafka does not answer, nothing is reported."""
        finding: BrokerLimit | None = None
        with contextlib.suppress(ClonosError):
            try:
                check_log_topic(admin, self._topic)
            except BrokerLimit as error:
                finding = error
            if finding is not None and finding.what != self._reported:
                self._emit(LogTopicUnsafe.of(finding, kept="the job continues."))
            self._reported = finding.what if finding is not None else ""
