"""What the overview shows: every job with where it runs, what could take over, and what weakens its guarantee.

One reading serves all who look at this replica: it is made anew when it is older than it may be, and the more a reading
costs the older it may be. Rates are from what was counted between two readings.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, JobState
from clonos.standby.states import StandbyState
from clonos_api.store.clock import now
from clonos_api.store.database import Database
from clonos_api.store.lease import NAME as LEADER
from clonos_api.store.tables import AgentRow, CounterRow, JobRow, LeaseRow, RecoveryRow, RunRow, StandbyRow

_YOUNGEST_S: Final = 1.0
_OLDEST_S: Final = 5.0
# Of the time, so much is spent on reading at the most.
_SHARE: Final = 0.1
_RATE_S: Final = 10.0
# Longer than an epoch's transactions last as a rule, also when they are tried again with more time.
_STAYS_OPEN: Final = timedelta(minutes=5)
# A start of a cold machine is over by then; what is not is somebody's to look at.
_CHANGES_OVER: Final = timedelta(minutes=2)
_STILL: Final = timedelta(minutes=1)
# The lease and those of hosts are looked at now and then, by a leader that may just have been lost.
_UNLED: Final = timedelta(seconds=10)
_SILENT: Final = "SILENT"
_WAITING: Final = (StandbyState.STARTING, StandbyState.WARMING, StandbyState.READY, StandbyState.STALE)
_WORKS: Final = (JobState.RUNNING, JobState.RECOVERING, JobState.STARTING)

Health = Literal["good", "weak", "busy", "bad", "idle"]


@dataclass(frozen=True, slots=True)
class Seat:
    """A driver or a standby, on a host."""

    host: str
    role: Literal["driver", "standby"]
    state: str


@dataclass(frozen=True, slots=True)
class Last:
    """A job's newest recovery."""

    id: str
    cause: str
    at: datetime
    gap_ms: float | None
    open: bool


@dataclass(frozen=True, slots=True)
class Line:
    """A job.

    Attributes:
        lag: Records of its sources that it has not read; None: not told yet.
        out_per_s: Records published a second.
        weak: What weakens its guarantee, in words; empty: it is whole.
        exact: Nothing of that says that something may be published twice or differently.
        alone: It runs without a standby or a spare, because its specification asks for none.
    """

    id: str
    name: str
    owner: str
    state: str
    since: datetime
    health: Health
    seats: tuple[Seat, ...]
    weak: tuple[str, ...]
    failure: str | None
    last: Last | None
    restarts: int
    lag: int | None
    out_per_s: float | None
    exact: bool = True
    alone: bool = False

    def shape(self) -> tuple[Any, ...]:
        """All but the figures, which change all the time."""
        return (
            self.name,
            self.state,
            self.since,
            self.health,
            self.seats,
            self.weak,
            self.failure,
            self.last,
            self.alone,
        )

    def at(self, host: str) -> tuple[Seat, ...]:
        """What of the job is on a host."""
        return tuple(seat for seat in self.seats if seat.host == host)

    def words(self) -> str:
        """What somebody who searches may type."""
        return " ".join((self.name, self.owner, self.state, *(seat.host for seat in self.seats))).lower()


@dataclass(frozen=True, slots=True)
class Head:
    """A host."""

    name: str
    state: str
    failure_domain: str
    used: int
    slots: int


@dataclass(frozen=True)
class Board:
    """All of it at one moment.

    Attributes:
        number: Of the reading, from 1.
        lines: Jobs by name; those that need somebody first.
        led: Somebody decides what happens after a failure.
    """

    number: int
    at: datetime
    hosts: tuple[Head, ...]
    lines: tuple[Line, ...]
    led: bool = True

    def counts(self) -> dict[str, int]:
        """How many jobs are how well."""
        found = dict.fromkeys(("good", "weak", "busy", "bad", "idle"), 0)
        for line in self.lines:
            found[line.health] += 1
        return found


@dataclass
class Boards:
    """The newest one.

    Args:
        database: The store.
    """

    database: Database
    _newest: Board | None = None
    _made_at: float = 0.0
    _cost_s: float = 0.0
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    _published: deque[tuple[float, dict[str, int]]] = field(default_factory=deque)

    async def newest(self) -> Board:
        """One that is young enough.

        Raises:
            StoreAway: The database does not answer.
        """
        async with self._reading:
            if self._newest is None or time.monotonic() - self._made_at >= self.pause_s():
                begun = time.monotonic()
                async with self.database.reading() as session:
                    read = await _read(session)
                self._newest = self._made(read)
                self._made_at = time.monotonic()
                self._cost_s = self._made_at - begun
            return self._newest

    def pause_s(self) -> float:
        """How old a board may be."""
        return min(_OLDEST_S, max(_YOUNGEST_S, self._cost_s / _SHARE))

    def _made(self, read: _Read) -> Board:
        moment = time.monotonic()
        totals = {job.id: sum(one.get("records_out", 0) for one in _queries(job)) for job in read.jobs}
        while self._published and self._published[0][0] <= moment - 3 * _RATE_S:
            self._published.popleft()  # nobody looked for a while
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
        heads = tuple(_head(one, read) for one in read.agents)
        return Board(number, read.at, heads, tuple(lines), led=read.led)


@dataclass(frozen=True)
class _Job:
    id: str
    name: str
    owner: str
    state: JobState
    since: datetime
    desired: str
    run: str | None
    restarts: int
    failure: Mapping[str, Any] | None
    metrics: Mapping[str, Any] | None
    spec: Mapping[str, Any]
    moving: Mapping[str, Any] | None


@dataclass(frozen=True)
class _Read:
    at: datetime
    jobs: list[_Job]
    agents: list[AgentRow]
    used: Mapping[str, int]
    drivers: Mapping[str, tuple[str, str]]
    standbys: Mapping[str, list[tuple[str, str]]]
    recoveries: Mapping[str, Last]
    diverged: Mapping[str, int]
    led: bool
    silent: frozenset[str]
    spares: frozenset[str]


async def _read(session: AsyncSession) -> _Read:
    rows = await session.execute(
        select(
            JobRow.id,
            JobRow.name,
            JobRow.owner,
            JobRow.state,
            JobRow.state_since,
            JobRow.desired_state,
            JobRow.run,
            JobRow.restarts,
            JobRow.failure,
            JobRow.metrics,
            JobRow.spec,
            JobRow.moving,
        ).where(JobRow.deleted_at.is_(None))
    )
    jobs = [_Job(row[0], row[1], row[2], JobState(row[3]), *row[4:]) for row in rows]
    gone = AgentRow.state == HostState.REMOVED
    agents = list(await session.scalars(select(AgentRow).where(~gone).order_by(AgentRow.name)))
    names = {one.id: one.name for one in agents}
    used = select(RunRow.agent, func.count()).where(RunRow.ended_at.is_(None)).group_by(RunRow.agent)
    drivers = (
        select(RunRow.id, RunRow.agent, RunRow.state)
        .join(JobRow, JobRow.run == RunRow.id)
        .where(JobRow.deleted_at.is_(None), RunRow.ended_at.is_(None))
    )
    waiting = select(StandbyRow.job, StandbyRow.agent, StandbyRow.state).where(StandbyRow.state.in_(_WAITING))
    standbys: dict[str, list[tuple[str, str]]] = {}
    for job, agent, state in await session.execute(waiting.order_by(StandbyRow.id)):
        standbys.setdefault(job or "", []).append((names.get(agent, agent), state))
    newest = select(RecoveryRow.job, func.max(RecoveryRow.started_at).label("at")).group_by(RecoveryRow.job).subquery()
    recoveries = select(RecoveryRow).join(
        newest, (RecoveryRow.job == newest.c.job) & (RecoveryRow.started_at == newest.c.at)
    )
    recoveries = recoveries.order_by(RecoveryRow.id)  # of two that began at once the later one
    diverged = select(CounterRow.job, CounterRow.value).where(CounterRow.name == "diverged_lanes", CounterRow.value > 0)
    at = await now(session)
    lease = (await session.execute(select(LeaseRow.expires_at).where(LeaseRow.name == LEADER))).scalar()
    return _Read(
        at=at,
        jobs=jobs,
        agents=agents,
        used=dict((await session.execute(used)).all()),
        drivers={run: (names.get(agent, agent), state) for run, agent, state in await session.execute(drivers)},
        standbys=standbys,
        recoveries={row.job: _last(row) for row in await session.scalars(recoveries)},
        diverged=dict((await session.execute(diverged)).all()),
        led=lease is not None and lease > at - _UNLED,
        silent=frozenset(one.name for one in agents if _silent(one, at)),
        spares=frozenset(one.name for one in agents if one.spares and one.state == HostState.READY),
    )


def _silent(row: AgentRow, at: datetime) -> bool:
    """Nobody has heard of it for longer than is allowed, and nobody has decided yet what that means."""
    return row.state in (HostState.READY, HostState.DRAINING) and row.lease_until < at - _UNLED


def _last(row: RecoveryRow) -> Last:
    return Last(row.id, row.body["cause"], row.started_at, row.body.get("gap_ms"), row.ended_at is None)


def _head(row: AgentRow, read: _Read) -> Head:
    state = _SILENT if row.name in read.silent else row.state
    return Head(row.name, state, row.failure_domain, read.used.get(row.id, 0), row.slots)


def _line(job: _Job, read: _Read, rate: float | None) -> Line:
    seats = []
    if (
        job.run is not None
        and job.run in read.drivers
        and job.state in (*_WORKS, JobState.STOPPING, JobState.CANCELLING)
    ):
        host, state = read.drivers[job.run]
        seats.append(Seat(host, "driver", state))
    seats += [Seat(host, "standby", state) for host, state in read.standbys.get(job.id, [])]
    seats = [Seat(one.host, one.role, _SILENT) if one.host in read.silent else one for one in seats]
    doubts = _doubts(job, read)
    lags = [sum(one["lag"].values()) for one in _queries(job) if one.get("lag")]
    lag = sum(lags) if lags and job.state == JobState.RUNNING else None
    weak = (*doubts, *_unguarded(job, seats, read), *_stands_still(job, lag, read.at))
    return Line(
        id=job.id,
        name=job.name,
        owner=job.owner,
        state=job.state,
        since=job.since,
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


def _queries(job: _Job) -> list[Mapping[str, Any]]:
    return list(((job.metrics or {}).get("queries") or {}).values())


def _doubts(job: _Job, read: _Read) -> list[str]:
    """Why something may be published twice, or differently."""
    # What runs counts: code may say otherwise than the specification, which may also be of a version yet to run.
    spec, told = job.spec.get("spec") or {}, job.metrics or {}
    delivery = told.get("delivery") or {"": spec.get("delivery", "exactly-once")}
    found = []
    if "at-least-once" in delivery.values():
        sinks = ", ".join(sorted(sink for sink, mode in delivery.items() if sink and mode == "at-least-once"))
        found.append(f"delivers at least once{f' ({sinks})' if sinks else ''}: it was told to")
    if str(told.get("sharing_depth") or spec.get("sharingDepth", "full")) == "0":
        found.append("no causal log (sharingDepth 0): what it reads from clocks and services is not replayed")
    if read.diverged.get(job.id):
        found.append(f"{read.diverged[job.id]} lanes computed something else when they were replayed")
    return found


def _stands_still(job: _Job, lag: int | None, moment: datetime) -> list[str]:
    """Whether records wait although it runs."""
    interval = (((job.spec.get("spec") or {}).get("trigger") or {}).get("intervalMs") or 0) / 1000
    told = (job.metrics or {}).get("at")
    last = max(job.since, datetime.fromisoformat(told)) if told else job.since
    if lag and moment - last > _STILL + timedelta(seconds=3 * interval):
        return ["records wait, and no epoch has ended for more than a minute"]
    return []


def _unguarded(job: _Job, seats: list[Seat], read: _Read) -> list[str]:
    """What else is not as it could be: records that may go unread, a failure that would be felt for long."""
    close = {topic: share for one in _queries(job) for topic, share in (one.get("retention") or {}).items()}
    found = [
        f"{share} % of what {topic} holds is not read yet, and it deletes records: unread ones may be next"
        for topic, share in sorted(close.items())
    ]
    if job.state == JobState.RUNNING:
        found += [
            f"readers of {topic} wait for a transaction that stays open there"
            for topic, since in sorted(((job.metrics or {}).get("open_transactions") or {}).items())
            if read.at - datetime.fromisoformat(since) > _STAYS_OPEN
        ]
        wanted = _wanted(job) or 0
        waiting = [seat for seat in seats if seat.role == "standby"]
        ready = sum(seat.state == StandbyState.READY for seat in waiting)
        if ready < wanted:
            found.append(f"{ready} of {wanted} standbys ready: a failure now may take a cold restart")
        drivers = {seat.host for seat in seats if seat.role == "driver"}
        if wanted and ready and all(seat.host in drivers for seat in waiting):
            found.append("its standby is on the driver's own host: the loss of that host takes both")
        if _wanted(job) is None and not read.spares - drivers:
            found.append("no other host has a spare for it: a failure now takes a cold restart")
    return found


def _wanted(job: _Job) -> int | None:
    """As many standbys as it asks for; None: it takes spares."""
    asked = (job.spec.get("spec") or {}).get("standby") or {}
    mode = asked.get("mode", "dedicated")
    return None if mode == "pool" else int(asked.get("replicas", 0)) if mode == "dedicated" else 0


def _health(job: _Job, weak: tuple[str, ...], seats: list[Seat], moment: datetime) -> Health:
    late = moment - job.since > _CHANGES_OVER
    if job.state == JobState.FAILED:
        return "bad"
    if job.state in (JobState.RECOVERING, JobState.STARTING, JobState.STOPPING, JobState.CANCELLING):
        return "bad" if late else "busy"
    if job.state == JobState.RUNNING:
        if not any(one.role == "driver" and one.state != _SILENT for one in seats):
            return "bad" if late else "busy"
        return "weak" if weak else "good"
    if job.state in (JobState.CREATED, JobState.STOPPED) and job.desired == DesiredState.RUNNING:
        return "bad" if late or job.failure else "busy"
    return "idle"


_ORDER: Final = {"bad": 0, "busy": 1, "weak": 2, "good": 3, "idle": 4}


def _first(line: Line) -> tuple[int, str]:
    return (_ORDER[line.health] if line.health in ("bad", "busy") else 2 if line.health != "idle" else 3, line.name)
