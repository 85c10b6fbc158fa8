"""Transactions that stay open in the topics that a job writes: readers of what is committed wait behind them.

Clients for Python cannot ask brokers for transactions. What is asked for instead is where a partition's readers are
held: its last stable offset (the end for ``read_committed``), where that is not its end. So long as it does not move,
the transaction in front of it is open; whose it is is not known.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from typing import Final

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from clonos.kafka import client_config
from clonos.runner.events import Emit
from clonos.settings import KafkaSettings

_EVERY_S: Final = 3.0
# Younger ones are epochs that are being published, as a rule.
_OLD_S: Final = 5.0
_TIMEOUT_S: Final = 5.0
_Partition = tuple[str, int]


class OpenTransactions:
    """Tells of transactions that are open for seconds, at each look, and once when there is none any more.

    Args:
        kafka: The cluster.
        emit: Gets ``open-transactions`` events: topic → since when (seconds since 1970) its readers were seen to wait.
        old_s: Only those that are open for so long.
    """

    def __init__(self, kafka: KafkaSettings, emit: Emit, *, old_s: float = _OLD_S) -> None:
        self._kafka = kafka
        self._emit = emit
        self._old_s = old_s
        self._topics: frozenset[str] = frozenset()
        self._held: dict[_Partition, tuple[int, float]] = {}  # last stable offset, since when
        self._told = False
        self._ended = threading.Event()
        # Not the meter's of lags: what is slow here must not keep that from seeing a stall.
        self._thread = threading.Thread(target=self._poll, daemon=True, name="clonos-open-transactions")

    def watch(self, topics: Collection[str]) -> None:
        """Look at these from now on."""
        self._topics = frozenset(topics)

    def start(self) -> None:
        """Look now and then, until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """End that; a look that is under way is not waited for, and tells nothing."""
        self._ended.set()

    def _poll(self) -> None:
        admin: AdminClient | None = None
        while not self._ended.wait(_EVERY_S):
            if self._topics:
                admin = admin or AdminClient(client_config(self._kafka))
                self.look(admin)

    def look(self, admin: AdminClient) -> None:
        """Ask once. Where Kafka does not answer there is no news."""
        try:
            partitions = [one for topic in self._topics for one in _partitions(admin, topic)]
            stable = _ends(admin, partitions, IsolationLevel.READ_COMMITTED)
            # Asked for last: what is committed in between looks open once, and has moved on at the next look.
            ends = _ends(admin, partitions, IsolationLevel.READ_UNCOMMITTED)
        except (KafkaException, TimeoutError):
            return
        now = time.monotonic()
        held = {}
        for partition, offset in stable.items():
            if offset < ends[partition]:
                before = self._held.get(partition)
                held[partition] = before if before is not None and before[0] == offset else (offset, now)
        self._held = held
        topics: dict[str, float] = {}
        for (topic, _), (_, since) in held.items():
            if now - since >= self._old_s:
                topics[topic] = max(now - since, topics.get(topic, 0.0))
        # Again and again, because a claim forgets what was told before it.
        if (topics or self._told) and not self._ended.is_set():
            self._told = bool(topics)
            self._emit("open-transactions", topics={topic: time.time() - age for topic, age in topics.items()})


def _partitions(admin: AdminClient, topic: str) -> list[TopicPartition]:
    found = admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
    return [TopicPartition(topic, number) for number in found.partitions]


def _ends(
    admin: AdminClient, partitions: Collection[TopicPartition], isolation: IsolationLevel
) -> dict[_Partition, int]:
    if not partitions:
        return {}
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = admin.list_offsets(dict.fromkeys(partitions, latest), isolation_level=isolation, request_timeout=_TIMEOUT_S)
    return {(one.topic, one.partition): future.result(_TIMEOUT_S).offset for one, future in asked.items()}
