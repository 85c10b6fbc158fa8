"""Measures the lag of each query behind its source topics, in a background thread. No epoch waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from functools import partial
from typing import Final

from confluent_kafka import TopicPartition

from clonos.driver.background import BackgroundWorker, Watch
from clonos.errors import ClonosError
from clonos.extend.source import Progress
from clonos.partition_offsets import OffsetClient, Offsets
from clonos.telemetry.driver_events import Lag, Retention
from clonos.telemetry.events import Emit

_EVERY_S: Final = 3.0
# While a query has started and its lag is not reported: a recovery may wait for that report.
_SOON_S: Final = 0.5
# Retention deletes records within minutes: every tenth poll checks it.
_POLLS_PER_RETENTION_CHECK: Final = 10
# At this unread share of a partition, retention may soon delete unread records.
_UNREAD_PERCENT: Final = 80
_UNREAD_RECORDS: Final = 100
_MAX_PARTITIONS: Final = 200
_TIMEOUT_S: Final = 5.0


def _ignore(_query: str, _seconds: float) -> None:
    """Do nothing about a stall."""


class LagMeter(Watch):
    """Compares the end offsets of each source topic with the offsets that its queries have read, and reports changes.

    The first report of a query after its start follows soon, also if it is unchanged.

    Args:
        offsets: Reads offsets of the Kafka cluster.
        emit: Receives ``lag`` events: a query, and its unread records by topic and by partition. Also ``retention``
            events: a query's topics that delete records and hold mostly unread ones, with the unread share in percent.
        stalled: Called in the polling thread with a query and the seconds for which its input waited without progress.
        stalled_s: Seconds without progress, besides the query's interval, before `stalled` is called; 0: never.
        every_s: Pause between two polls, in seconds.
    """

    def __init__(
        self,
        offsets: OffsetClient,
        emit: Emit,
        *,
        stalled: Callable[[str, float], None] = _ignore,
        stalled_s: float = 0.0,
        every_s: float = _EVERY_S,
    ) -> None:
        super().__init__("clonos-lag", every_s, emit)
        self._offsets = offsets
        self._busy: Callable[[], Collection[str]] = frozenset
        self._moved: Callable[[str], bool] = _unmoved
        self._stalled = stalled
        self._stalled_s = stalled_s
        self._stalls_checked_at = time.monotonic()
        self._waiting_since: dict[str, float] = {}  # query → first poll that found unread input
        self._progress: dict[str, Progress] = {}
        self._interval_s: dict[str, float] = {}
        # query → its newest report, and the progress at that time
        self._reported_lag: dict[str, tuple[dict[str, dict[int, int]], Progress]] = {}
        self._reported_retention: dict[str, dict[str, int]] = {}
        self._polls = 0
        self._answered = True  # whether Kafka answered the newest poll
        self._jvm = BackgroundWorker("clonos-progress")
        self._asked: dict[str, Future[bool]] = {}  # query → a question to the JVM that it has not answered
        self._wake = threading.Event()  # set if the next poll may be due sooner

    def start(
        self, busy: Callable[[], Collection[str]] = frozenset, moved: Callable[[str], bool] | None = None
    ) -> None:
        """Start polling in a background thread.

        Args:
            busy: Returns the queries with an epoch in progress, which therefore have input.
            moved: Returns whether the epoch in progress of a query made progress since the previous call.
        """
        self._busy = busy
        self._moved = moved or _unmoved
        super().start()

    def stop(self) -> None:
        """Stop polling, without waiting for a poll in progress."""
        super().stop()
        self._wake.set()

    def note_start(self, query: str, progress: Progress, interval_s: float = 0.0) -> None:
        """Record that `query` starts, and has read its sources up to `progress`, as in `note`.

        `interval_s` is the minimum time between two of its epochs.
        """
        self._reported_lag.pop(query, None)
        self._interval_s[query] = interval_s
        self.note(query, progress)
        self._wake.set()

    def note(self, query: str, progress: Progress) -> None:
        """Record that `query` has read its sources up to `progress` (topic → partition → next offset)."""
        self._progress[query] = progress
        self._waiting_since.pop(query, None)

    def _poll(self) -> None:
        while not self._stopped.is_set():
            if self._wake.wait(self._pause_s()):
                self._wake.clear()
                continue
            self.poll_once()
            self._check_stalls()

    def _pause_s(self) -> float:
        progress = dict(self._progress)
        reported = all(query in self._reported_lag for query, offsets in progress.items() if offsets)
        soon = self._answered and not (progress and reported)
        return min(_SOON_S, self._every_s) if soon else self._every_s

    def _check_stalls(self) -> None:
        now = time.monotonic()
        if now - self._stalls_checked_at > self._every_s + 2 * _TIMEOUT_S:
            self._waiting_since.clear()  # this process was suspended in between, and so were its queries
        self._stalls_checked_at = now
        for query, since in list(self._waiting_since.items()):
            began = time.monotonic()
            moved = now - since > self._stalled_s / 4 and self._has_moved(query)
            self._stalls_checked_at += min(time.monotonic() - began, _TIMEOUT_S)  # a longer wait was a suspension
            if moved:
                self._waiting_since[query] = now  # a long epoch is not a stall
            elif self._is_stall(query, now - since):
                self._stalled(query, now - since)

    def _is_stall(self, query: str, seconds: float) -> bool:
        longest = self._stalled_s + self._interval_s.get(query, 0.0)
        return self._stalled_s > 0 and seconds > longest and not self._stopped.is_set()

    def _has_moved(self, query: str) -> bool:
        """Whether the query made progress; False also if the JVM does not answer: Py4J would wait without a limit."""
        answer = self._asked.pop(query, None) or self._jvm.submit(partial(self._moved, query))
        try:
            return answer.result(_TIMEOUT_S)
        except TimeoutError:
            self._asked[query] = answer
            return False

    def poll_once(self) -> None:
        """Poll Kafka once and emit the changes.

        If Kafka does not answer, nothing is emitted, because the job itself reports that.
        """
        all_progress, busy = dict(self._progress), self._busy()
        partitions = {
            TopicPartition(topic, partition)
            for progress in all_progress.values()
            for topic, read in progress.items()
            for partition in read
        }
        try:
            begins: Offsets | None = None
            if self._polls % _POLLS_PER_RETENTION_CHECK == 0:
                begins, ends = self._offsets.bounds(partitions)
            else:
                ends = self._offsets.ends(partitions)
        except ClonosError:
            self._waiting_since.clear()  # whether input waits is unknown
            self._answered = False
            return
        self._answered = True
        self._polls += 1
        for query, progress in all_progress.items():
            if begins is not None:
                self._report_retention(query, close_to_retention(progress, begins, ends))
            lag = {
                topic: {number: max(0, ends.get((topic, number), next_) - next_) for number, next_ in read.items()}
                for topic, read in progress.items()
            }
            sums = {topic: sum(behind.values()) for topic, behind in lag.items()}
            if self._progress.get(query) is progress:  # otherwise the query has progressed in the meantime
                if query in busy or any(sums.values()):
                    self._waiting_since.setdefault(query, time.monotonic())
                else:
                    self._waiting_since.pop(query, None)
            # An unchanged lag after more epochs consists of records that arrived in the meantime.
            report = (lag, progress if any(sums.values()) else {})
            if lag and report != self._reported_lag.get(query):
                self._reported_lag[query] = report
                self._emit(Lag(query, sums, furthest_behind(lag)))

    def _report_retention(self, query: str, unread: dict[str, int]) -> None:
        if unread != self._reported_retention.get(query, {}):
            self._reported_retention[query] = unread
            self._emit(Retention(query, unread))


def _unmoved(_query: str) -> bool:
    return False


def furthest_behind(lag: dict[str, dict[int, int]], limit: int = _MAX_PARTITIONS) -> dict[str, dict[int, int]]:
    """Return the `limit` partitions with the largest lag: topic → partition → unread records, without partitions that
    have no lag.
    """
    behind = [(records, topic, number) for topic, each in lag.items() for number, records in each.items() if records]
    furthest: dict[str, dict[int, int]] = {}
    for records, topic, number in sorted(behind, reverse=True)[:limit]:
        furthest.setdefault(topic, {})[number] = records
    return furthest


def close_to_retention(progress: Progress, begins: Offsets, ends: Offsets) -> dict[str, int]:
    """Topics that may soon delete unread records: topic → largest unread share of its partitions in percent.

    `begins` and `ends` have the first and the end offset of each (topic, partition). A partition that begins at
    offset 0 has never deleted a record, and does not count.
    """
    shares: dict[str, int] = {}
    for topic, read in progress.items():
        for partition, next_ in read.items():
            begin, end = begins.get((topic, partition), 0), ends.get((topic, partition), 0)
            unread = end - max(next_, begin)
            if begin > 0 and unread >= _UNREAD_RECORDS and 100 * unread >= _UNREAD_PERCENT * (end - begin):
                shares[topic] = max(shares.get(topic, 0), 100 * unread // (end - begin))
    return shares
