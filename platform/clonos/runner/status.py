"""What a job is doing and how fast, added up from its events."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from clonos.runner.events import FIGURES, Event

MINUTE_S: Final = 60.0
_RATE_S: Final = 10.0


class Finished(NamedTuple):
    """One finished epoch."""

    at: float
    duration_ms: float
    read: int
    records: int


class Trouble(NamedTuple):
    """The newest error."""

    at: float
    error: str
    what: str
    hint: str


@dataclass
class QueryStatus:
    """One query.

    Attributes:
        epoch: Its newest finished epoch; -1 before the first.
        epochs: How many finished since this process started.
        sums: Sums over these epochs, by the names in `FIGURES`.
        lag: Source topic → records not yet read; empty until known.
        recent: The epochs of the last minute.
    """

    epoch: int = -1
    epochs: int = 0
    sums: Counter[str] = field(default_factory=Counter)
    lag: dict[str, int] = field(default_factory=dict)
    recent: deque[Finished] = field(default_factory=deque)

    def take(self, event: Event) -> None:
        """Take in a finished epoch."""
        self.epoch = event["epoch"]
        self.epochs += 1
        for name in FIGURES:
            self.sums[name] += event.get(name, 0)
        finished = Finished(event["at"], event["duration_ms"], event.get("read", 0), event["records"])
        self.recent.append(finished)
        self.forget(finished.at)

    def forget(self, now: float) -> None:
        """Drop what is older than a minute."""
        while self.recent and self.recent[0].at < now - MINUTE_S:
            self.recent.popleft()

    def rates(self, now: float, since: float) -> tuple[float, float]:
        """Records read and published a second, over the last seconds but not before `since`."""
        window = max(1.0, min(_RATE_S, now - since))
        recent = [one for one in self.recent if one.at > now - window]
        return sum(one.read for one in recent) / window, sum(one.records for one in recent) / window

    def duration_ms(self, share: float) -> float | None:
        """The duration that so large a `share` of the last minute's epochs did not exceed; None without any."""
        durations = sorted(one.duration_ms for one in self.recent)
        return durations[min(len(durations) - 1, int(share * len(durations)))] if durations else None


class JobStatus:
    """One job, as its events tell; fed by one thread and read by another, with `lock` held.

    Attributes:
        started: When this process started to tell.
        since: When the state was entered.
        restarts: Since this process started.
        attempt: Which restart in a row is under way; 0 while all is well.
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

    def take(self, event: Event) -> None:
        """Take in one event."""
        with self.lock:
            self.generation = event.get("generation") or self.generation
            match event["event"]:
                case "state":
                    self.state, self.since = event["state"], event["at"]
                case "epoch":
                    self._query(event).take(event)
                    self.attempt = 0
                case "lag":
                    self._query(event).lag = event["topics"]
                case "restart":
                    self.restarts += 1
                    self.attempt, self.pause_s = event["attempt"], event.get("pause_s", 0.0)
                    self._troubled(event)
                case "superseded" | "failed":
                    self.state = event["event"].upper()
                    self._troubled(event)

    def _query(self, event: Event) -> QueryStatus:
        return self.queries.setdefault(event["query"], QueryStatus())

    def _troubled(self, event: Event) -> None:
        self.trouble = Trouble(event["at"], event["error"], event["what"], event.get("hint", ""))

    def summary(self, *, now: float | None = None) -> dict[str, Any]:
        """Sums over the life of this process: the last event of a run."""
        with self.lock:
            sums: Counter[str] = Counter()
            for query in self.queries.values():
                sums.update(query.sums)
            return {
                "state": self.state,
                "seconds": round((time.time() if now is None else now) - self.started, 1),
                "epochs": sum(query.epochs for query in self.queries.values()),
                **{name: sums[name] for name in FIGURES},
                "restarts": self.restarts,
            }
