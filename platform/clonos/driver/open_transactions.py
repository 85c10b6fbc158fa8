"""Detects transactions that stay open in the topics that a job reads or writes: read_committed consumers wait behind
them. In a source topic the job itself waits, although its lag, which ends at the transaction, is 0.

Python clients cannot list a broker's transactions (KIP-664). Instead this compares a partition's last stable offset,
which is the end for ``read_committed``, with its end. As long as a smaller last stable offset does not move, the
transaction at that offset is open. Its producer is unknown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from typing import Final

from confluent_kafka import IsolationLevel

from clonos.errors import ClonosError
from clonos.partition_offsets import OffsetClient
from clonos.settings import KafkaSettings
from clonos.telemetry.driver_events import OpenTransactions as OpenTransactionsSeen
from clonos.telemetry.events import Emit

_EVERY_S: Final = 3.0
# Younger transactions usually belong to an epoch in progress.
_OLD_S: Final = 5.0
_TIMEOUT_S: Final = 5.0
_Partition = tuple[str, int]


class OpenTransactions:
    """Polls the topics that a job reads and writes, and reports transactions that stay open; reports once more when
    none is left.

    Args:
        kafka: The Kafka cluster.
        emit: Receives ``open-transactions`` events: topic → time (seconds since 1970) since which its readers wait.
        old_s: Minimum age of a reported transaction, in seconds.
    """

    def __init__(self, kafka: KafkaSettings, emit: Emit, *, old_s: float = _OLD_S) -> None:
        self._offsets = OffsetClient(kafka, timeout_s=_TIMEOUT_S)
        self._emit = emit
        self._old_s = old_s
        self._topics: frozenset[str] = frozenset()
        self._blocked: dict[_Partition, tuple[int, float]] = {}  # last stable offset, and the time of its first poll
        self._reported = False
        self._stopped = threading.Event()
        # Not the thread of the lag meter: a slow request here must not delay the detection of a stall.
        self._thread = threading.Thread(target=self._poll, daemon=True, name="clonos-open-transactions")

    def watch(self, *, read: Collection[str], written: Collection[str]) -> None:
        """Set the topics to check, instead of the previous ones: those that the job reads, and that it writes."""
        self._topics = frozenset(read) | frozenset(written)

    def start(self) -> None:
        """Start polling Kafka for open transactions, in a background thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop polling, without waiting for a poll in progress, which then reports nothing."""
        self._stopped.set()

    def _poll(self) -> None:
        while not self._stopped.wait(_EVERY_S):
            self.poll_once()

    def poll_once(self) -> None:
        """Poll Kafka once and report open transactions. If Kafka does not answer, nothing is reported."""
        try:
            partitions = [partition for topic in self._topics for partition in self._offsets.partitions(topic)]
            stable = self._offsets.ends(partitions)
            # Read last: a transaction that commits in between looks open now, and has moved at the next poll.
            ends = self._offsets.ends(partitions, IsolationLevel.READ_UNCOMMITTED)
        except ClonosError:
            return
        now = time.monotonic()
        blocked = {}
        for partition, offset in stable.items():
            if offset < ends.get(partition, offset):
                previous = self._blocked.get(partition)
                blocked[partition] = previous if previous is not None and previous[0] == offset else (offset, now)
        self._blocked = blocked
        topics: dict[str, float] = {}
        for (topic, _), (_, since) in blocked.items():
            if now - since >= self._old_s:
                topics[topic] = max(now - since, topics.get(topic, 0.0))
        # Repeated at each poll, because receivers discard earlier reports at a claim.
        if (topics or self._reported) and not self._stopped.is_set():
            self._reported = bool(topics)
            self._emit(OpenTransactionsSeen({topic: time.time() - age for topic, age in topics.items()}))
