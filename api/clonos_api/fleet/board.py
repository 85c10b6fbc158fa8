"""The overview's data: every job with its driver, its standbys, and the reasons why its guarantee is degraded.

One board serves all viewers of this replica. It is read again when it is too old. The longer a read takes, the older a
board may become. Rates are differences between two boards.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, JobState
from clonos.standby.states import StandbyState
from clonos.units import parse_duration
from clonos_api.store import hosts as store_hosts
from clonos_api.store import recoveries
from clonos_api.store.db.clock import now
from clonos_api.store.db.database import Database
from clonos_api.store.lease import NAME as LEADER
from clonos_api.store.standbys import WAITING
from clonos_api.store.tables import CounterRow, HostRow, JobRow, LeaseRow, RecoveryRow, RunRow, StandbyRow

_YOUNGEST_S: Final = 1.0
_OLDEST_S: Final = 5.0
# Largest share of the time that is spent on reading.
_SHARE: Final = 0.1
_RATE_S: Final = 10.0
# Longer than the transactions of an epoch usually last, including retries.
_STAYS_OPEN: Final = timedelta(minutes=5)
# A cold start takes less; a longer transition needs attention.
_CHANGES_OVER: Final = timedelta(minutes=2)
_STILL: Final = timedelta(minutes=1)
# Margin for the leader, which checks leases periodically and may itself just have failed over.
_UNLED: Final = timedelta(seconds=10)
_DISCONNECTED: Final = "DISCONNECTED"
_WORKS: Final = (JobState.RUNNING, JobState.RECOVERING, JobState.STARTING)

Health = Literal["good", "weak", "busy", "bad", "idle"]


@dataclass(frozen=True, slots=True)
class Seat:
    """A job's driver or standby on a host, for the overview."""

    host: str
    role: Literal["driver", "standby"]
    state: str  # of the run or of the standby; DISCONNECTED if the host's lease has expired


@dataclass(frozen=True, slots=True)
class Last:
    """A job's newest recovery, for the overview: `at` is its start, `open` whether it is in progress."""

    id: str
    cause: str
    at: datetime
    downtime_ms: float | None
    open: bool


@dataclass(frozen=True, slots=True)
class Line:
    """The overview's row of one job."""

    id: str
    name: str
    created_by: str
    state: str
    since: datetime  # time when the job entered its state
    health: Health  # weak: degraded guarantee; busy: changes its state; bad: needs attention; idle: needs no driver
    seats: tuple[Seat, ...]  # the job's driver and standbys, with their hosts
    weak: tuple[str, ...]  # reasons why the job's guarantee is degraded; empty if it is not
    failure: str | None  # why the job does not make progress
    last: Last | None  # the newest recovery; None if the job had none
    restarts: int
    lag: int | None  # unread records of the job's sources; None: not reported yet, or the job is not RUNNING
    out_per_s: float | None  # records published per second, over about 10 seconds; None: not measured yet
    # whether exactly-once delivery holds in spite of the reasons in `weak`, and a replay computes equal records
    exact: bool = True
    alone: bool = False  # the job runs without a standby because its specification requests none

    def shape(self) -> Line:
        """The line with restarts, lag and published records cleared, because these change constantly."""
        return replace(self, restarts=0, lag=None, out_per_s=None)

    def at(self, host: str) -> tuple[Seat, ...]:
        """The job's driver and standbys on the host with this name."""
        return tuple(seat for seat in self.seats if seat.host == host)

    def words(self) -> str:
        """The text in which the overview's filter searches: name, owner, state and hosts, in lower case."""
        return " ".join((self.name, self.created_by, self.state, *(seat.host for seat in self.seats))).lower()


@dataclass(frozen=True, slots=True)
class Head:
    """The overview's column of one host: its state, and its used and total slots."""

    name: str
    state: str
    failure_domain: str
    used: int
    slots: int


@dataclass(frozen=True)
class Board:
    """The data of the overview at one moment."""

    number: int  # sequence number of the board, from 1
    at: datetime
    hosts: tuple[Head, ...]
    lines: tuple[Line, ...]  # rows of the jobs: those that need attention first, then by name
    led: bool = True  # whether a replica is the leader, so that failures are handled

    def counts(self) -> dict[str, int]:
        """Number of jobs by health."""
        counts = dict.fromkeys(("good", "weak", "busy", "bad", "idle"), 0)
        for line in self.lines:
            counts[line.health] += 1
        return counts


@dataclass
class Boards:
    """Reads the overview's data from the store and caches the newest board."""

    database: Database
    _newest: Board | None = None
    _read_at: float = 0.0
    _cost_s: float = 0.0
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    _published: deque[tuple[float, dict[str, int]]] = field(default_factory=deque)

    async def newest(self) -> Board:
        """The cached board, or a new one if the cached one is older than `pause_s`."""
        async with self._reading:
            if self._newest is None or time.monotonic() - self._read_at >= self.pause_s():
                begun = time.monotonic()
                async with self.database.reading() as session:
                    read = await _read(session)
                self._newest = self._board(read)
                self._read_at = time.monotonic()
                self._cost_s = self._read_at - begun
            return self._newest

    def pause_s(self) -> float:
        """Maximum age of the cached board, in seconds."""
        return min(_OLDEST_S, max(_YOUNGEST_S, self._cost_s / _SHARE))

    def _board(self, read: _Read) -> Board:
        moment = time.monotonic()
        totals = {job.id: sum(query.get("records_out", 0) for query in _queries(job)) for job in read.jobs}
        while self._published and self._published[0][0] <= moment - 3 * _RATE_S:
            self._published.popleft()  # the overview had no viewer for a while
        while len(self._published) > 1 and self._published[1][0] <= moment - _RATE_S:
            self._published.popleft()
        before_at, before = self._published[0] if self._published else (moment, {})
        rates = {}
        if moment > before_at:
            rates = {
                job: max(0, total - before[job]) / (moment - before_at)
                for job, total in totals.items()
                if job in before
            }
        self._published.append((moment, totals))
        lines = sorted((_line(job, read, rates.get(job.id)) for job in read.jobs), key=_first)
        number = self._newest.number + 1 if self._newest is not None else 1
        heads = tuple(_head(host, read) for host in read.hosts)
        return Board(number, read.at, heads, tuple(lines), led=read.led)


@dataclass(frozen=True)
class _Read:
    at: datetime
    jobs: list[JobRow]
    hosts: list[HostRow]
    used: Mapping[str, int]
    drivers: Mapping[str, tuple[str, str]]
    standbys: Mapping[str, list[tuple[str, str]]]
    recoveries: Mapping[str, Last]
    diverged: Mapping[str, int]
    led: bool
    disconnected: frozenset[str]
    pool_available: frozenset[str]


async def _read(session: AsyncSession) -> _Read:
    jobs = list(await session.scalars(select(JobRow).where(JobRow.deleted_at.is_(None))))
    hosts = await store_hosts.every(session)
    names = {host.id: host.name for host in hosts}
    drivers = (
        select(RunRow.id, RunRow.host, RunRow.state)
        .join(JobRow, JobRow.run == RunRow.id)
        .where(JobRow.deleted_at.is_(None), RunRow.ended_at.is_(None))
    )
    waiting = select(StandbyRow.job, StandbyRow.host, StandbyRow.state).where(StandbyRow.state.in_(WAITING))
    standbys: dict[str, list[tuple[str, str]]] = {}
    for job, host, state in await session.execute(waiting.order_by(StandbyRow.id)):
        standbys.setdefault(job or "", []).append((names.get(host, host), state))
    diverged = select(CounterRow.job, CounterRow.value).where(CounterRow.name == "diverged_lanes", CounterRow.value > 0)
    at = await now(session)
    lease = (await session.execute(select(LeaseRow.expires_at).where(LeaseRow.name == LEADER))).scalar()
    return _Read(
        at=at,
        jobs=jobs,
        hosts=hosts,
        used=await store_hosts.loads(session),
        drivers={run: (names.get(host, host), state) for run, host, state in await session.execute(drivers)},
        standbys=standbys,
        recoveries={row.job: _last(row) for row in await session.scalars(recoveries.newest_of_jobs())},
        diverged=dict((await session.execute(diverged)).all()),
        led=lease is not None and lease > at - _UNLED,
        disconnected=frozenset(host.name for host in hosts if _disconnected(host, at)),
        pool_available=frozenset(host.name for host in hosts if host.pool_available and host.state == HostState.READY),
    )


def _disconnected(row: HostRow, at: datetime) -> bool:
    """Whether its lease has expired and the leader has not marked it LOST yet."""
    return row.state in (HostState.READY, HostState.DRAINING) and row.lease_until < at - _UNLED


def _last(row: RecoveryRow) -> Last:
    return Last(row.id, row.body["cause"], row.started_at, row.body.get("downtime_ms"), row.ended_at is None)


def _head(row: HostRow, read: _Read) -> Head:
    state = _DISCONNECTED if row.name in read.disconnected else row.state
    return Head(row.name, state, row.failure_domain, read.used.get(row.id, 0), row.slots)


def _line(job: JobRow, read: _Read, rate: float | None) -> Line:
    seats = []
    if (
        job.run is not None
        and job.run in read.drivers
        and job.state in (*_WORKS, JobState.STOPPING, JobState.CANCELLING)
    ):
        host, state = read.drivers[job.run]
        seats.append(Seat(host, "driver", state))
    seats += [Seat(host, "standby", state) for host, state in read.standbys.get(job.id, [])]
    seats = [Seat(seat.host, seat.role, _DISCONNECTED) if seat.host in read.disconnected else seat for seat in seats]
    doubts = _doubts(job, read)
    lags = [sum(query["lag"].values()) for query in _queries(job) if query.get("lag")]
    lag = sum(lags) if lags and job.state == JobState.RUNNING else None
    weak = (*doubts, *_unguarded(job, seats, read), *_stands_still(job, lag, read.at))
    return Line(
        id=job.id,
        name=job.name,
        created_by=job.created_by,
        state=job.state,
        since=job.state_since,
        health=_health(job, weak, seats, read.at),
        seats=tuple(seats),
        weak=weak,
        failure=str(job.failure["what"]) if job.failure else None,
        last=read.recoveries.get(job.id),
        restarts=job.restarts,
        lag=lag,
        out_per_s=rate if job.state == JobState.RUNNING else None,
        exact=not doubts,
        alone=job.state == JobState.RUNNING and _wanted(job) == 0,
    )


def _queries(job: JobRow) -> list[Mapping[str, Any]]:
    return list(((job.metrics or {}).get("queries") or {}).values())


def _doubts(job: JobRow, read: _Read) -> list[str]:
    """Reasons why records may be published twice, or differently in a replay."""
    # The running driver decides: its code may override the specification, which may also be of a later version.
    spec, metrics = job.spec.get("spec") or {}, job.metrics or {}
    delivery = metrics.get("delivery") or {"": spec.get("delivery", "exactly-once")}
    reasons = []
    if "at-least-once" in delivery.values():
        sinks = ", ".join(sorted(sink for sink, mode in delivery.items() if sink and mode == "at-least-once"))
        reasons.append(f"delivers at least once{f' ({sinks})' if sinks else ''}, as configured")
    if str(metrics.get("sharing_depth") or spec.get("sharingDepth", "full")) == "0":
        reasons.append("no causal log (sharingDepth 0): clock and service reads are not replayed")
    if read.diverged.get(job.id):
        reasons.append(f"{read.diverged[job.id]} lanes differed in a replay")
    return reasons


def _stands_still(job: JobRow, lag: int | None, moment: datetime) -> list[str]:
    """The reason, if records are waiting although the job runs."""
    interval = parse_duration(((job.spec.get("spec") or {}).get("trigger") or {}).get("interval") or "0s")
    reported_at = (job.metrics or {}).get("at")
    last = max(job.state_since, datetime.fromisoformat(reported_at)) if reported_at else job.state_since
    if lag and moment - last > _STILL + timedelta(seconds=3 * interval):
        return ["records are waiting, and no epoch has finished for more than a minute"]
    return []


def _unguarded(job: JobRow, seats: list[Seat], read: _Read) -> list[str]:
    """Reasons that leave the guarantee intact: records that may be deleted unread, or a slow recovery."""
    close = {topic: share for query in _queries(job) for topic, share in (query.get("retention") or {}).items()}
    reasons = [
        f"{share} % of the records in {topic} are unread, and its retention deletes records: unread records may be lost"
        for topic, share in sorted(close.items())
    ]
    if job.state == JobState.RUNNING:
        reasons += [
            f"readers of {topic} wait for a long open transaction"
            for topic, since in sorted(((job.metrics or {}).get("open_transactions") or {}).items())
            if read.at - datetime.fromisoformat(since) > _STAYS_OPEN
        ]
        wanted = _wanted(job) or 0
        waiting = [seat for seat in seats if seat.role == "standby"]
        ready = sum(seat.state == StandbyState.READY for seat in waiting)
        if ready < wanted:
            reasons.append(f"{ready} of {wanted} standbys ready: a failure may lead to a cold restart")
        drivers = {seat.host for seat in seats if seat.role == "driver"}
        if wanted and ready and all(seat.host in drivers for seat in waiting):
            reasons.append("the standby is on the driver's host: a host failure takes both")
        if _wanted(job) is None and not read.pool_available - drivers:
            reasons.append("no pool driver on another host: a failure leads to a cold restart")
    return reasons


def _wanted(job: JobRow) -> int | None:
    """Number of standbys that the specification requests; None: it uses the warm pool."""
    asked = (job.spec.get("spec") or {}).get("standby") or {}
    mode = asked.get("mode", "dedicated")
    return None if mode == "pool" else int(asked.get("replicas", 0)) if mode == "dedicated" else 0


def _health(job: JobRow, weak: tuple[str, ...], seats: list[Seat], moment: datetime) -> Health:
    late = moment - job.state_since > _CHANGES_OVER
    if job.state == JobState.FAILED:
        return "bad"
    if job.state in (JobState.RECOVERING, JobState.STARTING, JobState.STOPPING, JobState.CANCELLING):
        return "bad" if late else "busy"
    if job.state == JobState.RUNNING:
        if not any(seat.role == "driver" and seat.state != _DISCONNECTED for seat in seats):
            return "bad" if late else "busy"
        return "weak" if weak else "good"
    if job.state in (JobState.CREATED, JobState.STOPPED) and job.desired_state == DesiredState.RUNNING:
        return "bad" if late or job.failure else "busy"
    return "idle"


_ORDER: Final = {"bad": 0, "busy": 1, "weak": 2, "good": 3, "idle": 4}


def _first(line: Line) -> tuple[int, str]:
    return (_ORDER[line.health] if line.health in ("bad", "busy") else 2 if line.health != "idle" else 3, line.name)
