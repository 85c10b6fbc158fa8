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
_TIMEOUT_S: Final = 5.0


class LagMeter:
    """Compares the end of each source topic with what its queries have read, and tells what changed.

    Args:
        kafka: The cluster.
        emit: Gets ``lag`` events: a query, and records behind for each of its topics.
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
        self._told: dict[str, dict[str, int]] = {}
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
            ends = self._ends(admin, known)
        except (KafkaException, TimeoutError):
            self._waits.clear()  # nobody knows whether input waits
            return
        for query, progress in known.items():
            lag = {
                topic: sum(max(0, ends.get((topic, partition), next_) - next_) for partition, next_ in read.items())
                for topic, read in progress.items()
            }
            if self._progress.get(query) is progress:  # else it has moved on meanwhile
                if query in busy or any(lag.values()):
                    self._waits.setdefault(query, time.monotonic())
                else:
                    self._waits.pop(query, None)
            if lag and lag != self._told.get(query) and not self._ended.is_set():
                self._told[query] = lag
                self._emit("lag", query=query, topics=lag)

    def _ends(self, admin: AdminClient, known: dict[str, Progress]) -> dict[tuple[str, int], int]:
        wanted = {
            TopicPartition(topic, partition)
            for progress in known.values()
            for topic, read in progress.items()
            for partition in read
        }
        if not wanted:
            return {}
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = admin.list_offsets(
            dict.fromkeys(wanted, latest),
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=_TIMEOUT_S,
        )
        return {(one.topic, one.partition): future.result(_TIMEOUT_S).offset for one, future in asked.items()}
