"""Computes the status and the rates of a job from the events of its driver."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from clonos.telemetry.driver_events import (
    FIGURES,
    DriverEvent,
    Epoch,
    Failed,
    Lag,
    Report,
    Restart,
    State,
    Summary,
    Superseded,
    Waiting,
)

MINUTE_S: Final = 60.0
_RATE_S: Final = 10.0


class Finished(NamedTuple):
    """One finished epoch: its end in seconds since 1970, its duration, and the records read and published."""

    at: float
    duration_ms: float
    read: int
    records: int


class Trouble(NamedTuple):
    """The newest error that an event of the driver reported."""

    at: float  # in seconds since 1970
    error: str  # `ClonosError.slug`, the name of the kind of error
    what: str  # the message
    hint: str


@dataclass
class QueryStatus:
    """The status of one query of a job."""

    epoch: int = -1  # newest finished epoch; -1 before the first
    epochs: int = 0  # number of epochs finished since this process started
    # Sums over these epochs of the numbers in `FIGURES`, such as ``records_in``.
    sums: Counter[str] = field(default_factory=Counter)
    # Source topic → unread records; empty before the first ``lag`` event.
    lag: dict[str, int] = field(default_factory=dict)
    recent: deque[Finished] = field(default_factory=deque)  # the epochs of the last minute

    def take(self, event: Epoch) -> None:
        """Add a finished epoch."""
        self.epoch = event.epoch
        self.epochs += 1
        for name in FIGURES:
            self.sums[name] += getattr(event, name)
        finished = Finished(event.at, event.duration_ms, event.records_in, event.records_out)
        self.recent.append(finished)
        self.forget(finished.at)

    def forget(self, now: float) -> None:
        """Remove epochs that ended more than a minute before `now` (seconds since 1970)."""
        while self.recent and self.recent[0].at < now - MINUTE_S:
            self.recent.popleft()

    def rates(self, now: float, since: float) -> tuple[float, float]:
        """Return the records read and records published per second, averaged over the last 10 seconds.

        Args:
            now: End of these seconds, in seconds since 1970.
            since: Start of the process, in seconds since 1970. The average does not begin earlier, but covers at
                least 1 second.
        """
        window = max(1.0, min(_RATE_S, now - since))
        recent = [epoch for epoch in self.recent if epoch.at > now - window]
        return sum(epoch.read for epoch in recent) / window, sum(epoch.records for epoch in recent) / window

    def duration_ms(self, share: float) -> float | None:
        """Return the quantile `share` (0 to 1) of the durations of the last minute's epochs, in ms; None without
        epochs.
        """
        durations = sorted(epoch.duration_ms for epoch in self.recent)
        return durations[min(len(durations) - 1, int(share * len(durations)))] if durations else None


class JobStatus:
    """The status of one job, computed from its driver's events.

    One thread adds events and another reads, both with `lock` held.

    Attributes:
        started: Time of the start of this process, in seconds since 1970.
        since: Time of the newest change of state, in seconds since 1970.
        restarts: Number of restarts since this process started.
        attempt: Number of consecutive restarts so far; 0 after a finished epoch.
        pause_s: Pause before the newest restart, in seconds.
    """

    def __init__(self, job: str, *, now: float | None = None) -> None:
        self.lock = threading.Lock()
        self.job = job
        self.state = "STARTING"
        self.started = self.since = time.time() if now is None else now
        self.generation = 0
        self.restarts = 0
        self.attempt = 0
        self.pause_s = 0.0
        self.trouble: Trouble | None = None
        self.queries: dict[str, QueryStatus] = {}

    def take(self, event: DriverEvent) -> None:
        """Update the status with one event of the driver."""
        with self.lock:
            self.generation = event.generation or self.generation
            match event:
                case State():
                    self.state, self.since = event.state, event.at
                case Epoch():
                    self._query(event.query).take(event)
                    self.attempt = 0
                case Lag():
                    self._query(event.query).lag = event.topics
                case Restart():
                    self.restarts += 1
                    self.attempt, self.pause_s = event.attempt, event.pause_s
                    self._note_trouble(event)
                case Waiting():
                    self._note_trouble(event)
                case Superseded() | Failed():
                    self.state = event.name.upper()
                    self._note_trouble(event)

    def _query(self, name: str) -> QueryStatus:
        return self.queries.setdefault(name, QueryStatus())

    def _note_trouble(self, event: Report) -> None:
        self.trouble = Trouble(event.at, event.error, event.what, event.hint)

    def summary(self, *, now: float | None = None) -> Summary:
        """Totals since the start of this process: the driver's last event.

        `now` is the current time in seconds since 1970; default: the clock's.
        """
        with self.lock:
            sums: Counter[str] = Counter()
            for query in self.queries.values():
                sums.update(query.sums)
            summary = Summary(
                state=self.state,
                seconds=round((time.time() if now is None else now) - self.started, 1),
                epochs=sum(query.epochs for query in self.queries.values()),
                restarts=self.restarts,
            )
            for name in FIGURES:
                setattr(summary, name, sums[name])
            return summary
