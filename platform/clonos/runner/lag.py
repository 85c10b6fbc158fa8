"""How far each query is behind its source topics, polled in the background; no epoch waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Final

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from clonos.kafka import client_config
from clonos.runner.events import Emit
from clonos.settings import KafkaSettings
from clonos.sources import Progress

_EVERY_S: Final = 3.0
# Retention works in minutes: it is looked at with each tenth look.
_RETENTION_LOOKS: Final = 10
# Of what a partition holds so much is unread: what is deleted next may be.
_CLOSE: Final = 80
_FEW: Final = 100
_MOST: Final = 200
_TIMEOUT_S: Final = 5.0


class LagMeter:
    """Compares the end of each source topic with what its queries have read, and tells what changed.

    Args:
        kafka: The cluster.
        emit: Gets ``lag`` events: a query, and records behind for each of its topics and for partitions that are
            behind; and ``retention`` events: its topics that delete records and hold little else than what it has not
            read, with the unread share in percent.
        stalled: Called with a query and the seconds for which its input waited without any progress.
        stalled_s: When to call it; 0: never.
        every_s: Pause between two looks.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        emit: Emit,
        *,
        stalled: Callable[[str, float], None] | None = None,
        stalled_s: float = 0.0,
        every_s: float = _EVERY_S,
    ) -> None:
        self._kafka = kafka
        self._emit = emit
        self._every_s = every_s
        self._busy: Callable[[], Collection[str]] = frozenset
        self._stalled = stalled
        self._stalled_s = stalled_s
        self._judged = time.monotonic()
        self._waits: dict[str, float] = {}  # since when a query's input was seen to wait
        self._progress: dict[str, Progress] = {}
        self._told: dict[str, dict[str, dict[int, int]]] = {}
        self._warned: dict[str, dict[str, int]] = {}
        self._looks = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True, name="clonos-lag")

    def start(self, busy: Callable[[], Collection[str]] = frozenset) -> None:
        """Poll until `stop`; what `busy` gives has an epoch under way, and so has input, known or not."""
        self._busy = busy
        self._thread.start()

    def stop(self) -> None:
        """End the polling; a look that runs is not waited for."""
        self._ended.set()

    def note(self, query: str, progress: Progress) -> None:
        """A query has read up to `progress`."""
        self._progress[query] = progress
        self._waits.pop(query, None)

    def _poll(self) -> None:
        admin: AdminClient | None = None
        while not self._ended.wait(self._every_s):
            admin = admin or AdminClient(client_config(self._kafka))
            self.look(admin)
            self._judge()

    def _judge(self) -> None:
        now = time.monotonic()
        if now - self._judged > self._every_s + 2 * _TIMEOUT_S:
            self._waits.clear()  # this process was stopped meanwhile, and so were its queries
        self._judged = now
        for query, since in list(self._waits.items()):
            if self._stalled is not None and 0 < self._stalled_s < now - since and not self._ended.is_set():
                self._stalled(query, now - since)

    def look(self, admin: AdminClient) -> None:
        """Ask for the ends once. Where Kafka does not answer there is no news: the job itself will tell."""
        known, busy = dict(self._progress), self._busy()
        try:
            ends = self._offsets(admin, known, OffsetSpec.latest())  # type: ignore[no-untyped-call]
            begins = None
            if self._looks % _RETENTION_LOOKS == 0:
                begins = self._offsets(admin, known, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        except (KafkaException, TimeoutError):
            self._waits.clear()  # nobody knows whether input waits
            return
        self._looks += 1
        for query, progress in known.items():
            if begins is not None:
                self._warn(query, close_to_retention(progress, begins, ends))
            lag = {
                topic: {number: max(0, ends.get((topic, number), next_) - next_) for number, next_ in read.items()}
                for topic, read in progress.items()
            }
            sums = {topic: sum(behind.values()) for topic, behind in lag.items()}
            if self._progress.get(query) is progress:  # else it has moved on meanwhile
                if query in busy or any(sums.values()):
                    self._waits.setdefault(query, time.monotonic())
                else:
                    self._waits.pop(query, None)
            if lag and lag != self._told.get(query) and not self._ended.is_set():
                self._told[query] = lag
                self._emit("lag", query=query, topics=sums, partitions=furthest_behind(lag))

    def _warn(self, query: str, close: dict[str, int]) -> None:
        if close != self._warned.get(query, {}) and not self._ended.is_set():
            self._warned[query] = close
            self._emit("retention", query=query, topics=close)

    @staticmethod
    def _offsets(admin: AdminClient, known: dict[str, Progress], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        wanted = {
            TopicPartition(topic, partition)
            for progress in known.values()
            for topic, read in progress.items()
            for partition in read
        }
        if not wanted:
            return {}
        asked = admin.list_offsets(
            dict.fromkeys(wanted, spec),
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=_TIMEOUT_S,
        )
        return {(one.topic, one.partition): future.result(_TIMEOUT_S).offset for one, future in asked.items()}


def furthest_behind(lag: dict[str, dict[int, int]], most: int = _MOST) -> dict[str, dict[int, int]]:
    """Topic → partition → records behind, of the partitions that are furthest behind; not of those that are not."""
    behind = [(records, topic, number) for topic, each in lag.items() for number, records in each.items() if records]
    found: dict[str, dict[int, int]] = {}
    for records, topic, number in sorted(behind, reverse=True)[:most]:
        found.setdefault(topic, {})[number] = records
    return found


def close_to_retention(
    progress: Progress, begins: dict[tuple[str, int], int], ends: dict[tuple[str, int], int]
) -> dict[str, int]:
    """Topics of which a partition holds hardly anything that is read; the largest unread share, in percent.

    A partition that begins at 0 has never deleted anything, and does not count.
    """
    found: dict[str, int] = {}
    for topic, read in progress.items():
        for partition, next_ in read.items():
            begin, end = begins.get((topic, partition), 0), ends.get((topic, partition), 0)
            unread = end - max(next_, begin)
            if begin > 0 and unread >= _FEW and 100 * unread >= _CLOSE * (end - begin):
                found[topic] = max(found.get(topic, 0), 100 * unread // (end - begin))
    return found
