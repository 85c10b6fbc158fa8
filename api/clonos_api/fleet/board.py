"""Caches the newest board.

One board serves all viewers of this replica. It is read again when it is too old. The longer a read takes, the older a
board may become. Rates are differences between two boards.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from clonos_api.fleet.facts import Facts, read_facts
from clonos_api.fleet.forecasts import Estimates, read_estimates
from clonos_api.fleet.health import Rates, attention, dependencies_of, line_of, unread_of
from clonos_api.fleet.lines import DISCONNECTED, SILENT, Board, Head, Strip
from clonos_api.fleet.strip import RecentRecoveries, strip_of
from clonos_api.store.db.database import Database
from clonos_api.store.tables import HostRow, JobRow

_YOUNGEST_S: Final = 1.0
_OLDEST_S: Final = 5.0
# Largest share of the time that is spent on reading.
_SHARE: Final = 0.1
_RATE_S: Final = 10.0
# Longer than most epochs: a job reads nothing while it computes one.
_READ_S: Final = 60.0
_DEAD_LETTERS_S: Final = 300.0
# Totals that a history keeps of its span.
_KEPT: Final = 20
_RIVAL_FOR: Final = timedelta(hours=1)  # as in docker/compose/alerts.yml
_ESTIMATES_S: Final = 30.0


@dataclass
class History:
    """Totals of the jobs at earlier boards, for their rates over about `span_s` seconds."""

    figure: Callable[[JobRow], int]  # the total of a job
    span_s: float
    measured_s: float = 0.0  # the seconds that the newest rates are of
    _totals: deque[tuple[float, dict[str, int]]] = field(default_factory=deque)

    def rates(self, moment: float, jobs: Sequence[JobRow]) -> dict[str, float]:
        """Add the jobs' totals at `moment`, and return their rates since the oldest board of the span."""
        totals = {job.id: self.figure(job) for job in jobs}
        while self._totals and self._totals[0][0] <= moment - 3 * self.span_s:
            self._totals.popleft()  # the overview had no viewer for a while
        while len(self._totals) > 1 and self._totals[1][0] <= moment - self.span_s:
            self._totals.popleft()
        before_at, before = self._totals[0] if self._totals else (moment, {})
        if not self._totals or moment - self._totals[-1][0] >= self.span_s / _KEPT:
            self._totals.append((moment, totals))
        self.measured_s = moment - before_at
        if moment <= before_at:
            return {}
        rates = {job: (total - before[job]) / (moment - before_at) for job, total in totals.items() if job in before}
        return {job: max(0.0, rate) for job, rate in rates.items()}


def _sum_of(figure: str) -> Callable[[JobRow], int]:
    """Return the sum of a metric of the queries of a job, such as ``records_out``."""
    return lambda job: sum(getattr(query, figure) for query in job.figures.queries.values())


@dataclass
class Boards:
    """Reads the overview's data from the store and caches the newest board."""

    database: Database
    _newest: Board | None = None
    _read_at: float = 0.0
    _cost_s: float = 0.0
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    _estimates: Estimates = field(default_factory=Estimates)
    _estimated_at: float = -_ESTIMATES_S
    _recent: RecentRecoveries = field(default_factory=RecentRecoveries)
    _published: History = field(default_factory=lambda: History(_sum_of("records_out"), _RATE_S))
    _read: History = field(default_factory=lambda: History(_sum_of("records_in"), _READ_S))
    _unread: History = field(default_factory=lambda: History(lambda job: unread_of(job) or 0, _READ_S))
    _dead_letters: History = field(default_factory=lambda: History(_sum_of("dead_letters"), _DEAD_LETTERS_S))

    async def newest(self) -> Board:
        """Return the cached board, or a new one if the cached one is older than `pause_s`."""
        async with self._reading:
            if self._newest is None or time.monotonic() - self._read_at >= self.pause_s():
                begun = time.monotonic()
                async with self.database.reading() as session:
                    facts = await read_facts(session)
                    if begun >= self._estimated_at + _ESTIMATES_S:
                        self._estimates, self._estimated_at = await read_estimates(session), begun
                    recent = await self._recent.read(session, facts)
                strip = strip_of(recent, {job.id: job.name for job in facts.jobs}, facts.at)
                self._newest = self._board(facts, strip)
                self._read_at = time.monotonic()
                self._cost_s = self._read_at - begun
            return self._newest

    def pause_s(self) -> float:
        """Maximum age of the cached board, in seconds."""
        return min(_OLDEST_S, max(_YOUNGEST_S, self._cost_s / _SHARE))

    def _board(self, facts: Facts, strip: Strip) -> Board:
        moment = time.monotonic()
        published, read = self._published.rates(moment, facts.jobs), self._read.rates(moment, facts.jobs)
        dead, unread = self._dead_letters.rates(moment, facts.jobs), self._unread.rates(moment, facts.jobs)
        rates = {
            job.id: Rates(
                published.get(job.id),
                read.get(job.id),
                dead.get(job.id),
                unread=unread.get(job.id),
                measured_s=self._read.measured_s,
            )
            for job in facts.jobs
        }
        lines = sorted((line_of(job, facts, self._estimates, rates[job.id]) for job in facts.jobs), key=attention)
        number = self._newest.number + 1 if self._newest is not None else 1
        heads = tuple(_head(host, facts) for host in facts.hosts)
        dependencies = dependencies_of(facts.jobs)
        return Board(
            number,
            facts.at,
            heads,
            tuple(lines),
            led=facts.led,
            dependencies=dependencies,
            strip=strip,
            tokens=facts.tokens,
            free_bytes=self.database.free_bytes(),
        )


def _head(row: HostRow, facts: Facts) -> Head:
    state = DISCONNECTED if row.name in facts.disconnected else SILENT if row.name in facts.silent else row.state
    rival_at = row.rival_at if row.rival_at is not None and facts.at - row.rival_at < _RIVAL_FOR else None
    return Head(row.name, state, row.failure_domain, facts.used.get(row.id, 0), row.slots, rival_at)
