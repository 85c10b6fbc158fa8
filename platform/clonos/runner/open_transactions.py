"""Transactions that stay open in the topics that a job writes: readers of what is committed wait behind them.

Clients for Python cannot ask brokers for transactions. What is asked for instead is where a partition's readers are
held: its last stable offset (the end for ``read_committed``), where that is not its end. So long as it does not move,
the transaction in front of it is open; whose it is is not known.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from clonos.runner.events import Emit

# Younger ones are epochs that are being published.
_OLD_S: Final = 5.0
_TIMEOUT_S: Final = 5.0
_Partition = tuple[str, int]


class OpenTransactions:
    """Tells of transactions that are open for seconds, when there is one and when there is none any more.

    Args:
        emit: Gets ``open-transactions`` events: topic → since when (seconds since 1970) its readers wait.
        old_s: Only those that are open for so long.
    """

    def __init__(self, emit: Emit, *, old_s: float = _OLD_S) -> None:
        self._emit = emit
        self._old_s = old_s
        self._topics: frozenset[str] = frozenset()
        self._held: dict[_Partition, tuple[int, float]] = {}  # last stable offset, since when
        self._told: dict[str, float] = {}

    def watch(self, topics: Collection[str]) -> None:
        """Look at these from now on."""
        self._topics = frozenset(topics)

    def look(self, admin: AdminClient) -> None:
        """Ask once. Where Kafka does not answer there is no news."""
        topics = self._topics
        try:
            partitions = [one for topic in topics for one in _partitions(admin, topic)]
            stable = _ends(admin, partitions, IsolationLevel.READ_COMMITTED)
            ends = _ends(admin, partitions, IsolationLevel.READ_UNCOMMITTED)
        except (KafkaException, TimeoutError):
            return
        now = time.time()
        # The ends are asked for last: what was committed in between looks open once, and has moved on when it is next
        # looked at.
        held = {one: at for one, at in stable.items() if at < ends[one]}
        self._held = {
            one: (at, self._held[one][1] if self._held.get(one, (-1, 0))[0] == at else now) for one, at in held.items()
        }
        told: dict[str, float] = {}
        for (topic, _), (_, since) in self._held.items():
            if now - since >= self._old_s:
                told[topic] = min(since, told.get(topic, since))
        if told != self._told:
            self._told = told
            self._emit("open-transactions", topics=told)


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
