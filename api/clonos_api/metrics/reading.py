"""What the store knows of all jobs and hosts at one moment, in a handful of queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.hosts import HostState
from clonos_api.store import standbys
from clonos_api.store.tables import AgentRow, CounterRow, JobRow, RecoveryRow, RunRow, StandbyRow


@dataclass(frozen=True, slots=True)
class Job:
    """A job.

    Attributes:
        queries: As the newest driver tells (`QueryMetrics`), by name.
        counters: Sums since the job was created.
        checkpoint_bytes: Query → size of its checkpoint, as the newest driver's agent measured it.
        standbys_wanted: As many as its specification asks for.
        interval_s: At least so long between two epochs.
        epoch_at: When its newest epoch ended.
        open_transactions: Topic that it writes → since when readers wait there for a transaction.
    """

    id: str
    name: str
    state: str
    generation: int
    queries: Mapping[str, Mapping[str, Any]]
    counters: Mapping[str, int]
    checkpoint_bytes: Mapping[str, int]
    standbys_wanted: int
    interval_s: float = 0.0
    epoch_at: datetime | None = None
    open_transactions: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A standby that waits: of which job, where, and how many epochs behind; None: it has not told yet."""

    id: str
    job: str
    host: str
    state: str
    lag: int | None


@dataclass(frozen=True, slots=True)
class Recovered:
    """The newest recovery of a job that has ended; milliseconds."""

    job: str
    cause: str
    gap_ms: float | None
    phases_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Host:
    """A host."""

    name: str
    state: str
    slots: int
    used: int
    spares: int


@dataclass(frozen=True)
class Reading:
    """All of it."""

    jobs: tuple[Job, ...]
    standbys: tuple[Waiting, ...]
    recoveries: tuple[Recovered, ...]
    hosts: tuple[Host, ...]


async def read(session: AsyncSession) -> Reading:
    """Everything. On PostgreSQL each query sees its own moment."""
    jobs = await _jobs(session)
    names = {job.id: job.name for job in jobs}
    hosts = {one.id: one for one in await session.scalars(select(AgentRow).where(AgentRow.state != HostState.REMOVED))}
    used = select(RunRow.agent, func.count()).where(RunRow.ended_at.is_(None)).group_by(RunRow.agent)
    taken = dict((await session.execute(used)).all())
    rows = list(await session.scalars(select(StandbyRow).where(StandbyRow.state.in_(standbys.WAITING))))
    lags = await standbys.lags(session, rows)
    return Reading(
        jobs=jobs,
        standbys=tuple(
            Waiting(row.id, names[row.job], hosts[row.agent].name, row.state, lags.get(row.id))
            for row in rows
            if row.job in names and row.agent in hosts
        ),
        recoveries=await _recoveries(session, names),
        hosts=tuple(
            Host(one.name, one.state, one.slots, taken.get(one.id, 0), one.spares)
            for one in sorted(hosts.values(), key=lambda one: one.name)
        ),
    )


async def _jobs(session: AsyncSession) -> tuple[Job, ...]:
    columns = (JobRow.id, JobRow.name, JobRow.state, JobRow.generation, JobRow.metrics, JobRow.spec)
    rows = select(*columns, RunRow.checkpoint_bytes).outerjoin(RunRow, RunRow.id == JobRow.run)
    sums: dict[str, dict[str, int]] = {}
    for job, name, value in await session.execute(select(CounterRow.job, CounterRow.name, CounterRow.value)):
        sums.setdefault(job, {})[name] = value
    found = []
    for id, name, state, generation, told, spec, sizes in await session.execute(
        rows.where(JobRow.deleted_at.is_(None)).order_by(JobRow.name)
    ):
        told, asked = told or {}, spec.get("spec") or {}
        standby, at = asked.get("standby") or {}, told.get("at")
        one = Job(
            id=id,
            name=name,
            state=state,
            generation=generation,
            queries=told.get("queries") or {},
            counters=sums.get(id, {}),
            checkpoint_bytes=sizes or {},
            standbys_wanted=int(standby.get("replicas", 0)) if standby.get("mode", "dedicated") == "dedicated" else 0,
            interval_s=((asked.get("trigger") or {}).get("intervalMs") or 0) / 1000,
            epoch_at=datetime.fromisoformat(at) if at else None,
            open_transactions={
                topic: datetime.fromisoformat(since) for topic, since in (told.get("open_transactions") or {}).items()
            },
        )
        found.append(one)
    return tuple(found)


async def _recoveries(session: AsyncSession, names: Mapping[str, str]) -> tuple[Recovered, ...]:
    newest = (
        select(RecoveryRow.job, func.max(RecoveryRow.started_at).label("at"))
        .where(RecoveryRow.ended_at.is_not(None))
        .group_by(RecoveryRow.job)
        .subquery()
    )
    rows = select(RecoveryRow).join(newest, (RecoveryRow.job == newest.c.job) & (RecoveryRow.started_at == newest.c.at))
    found = {}
    for row in await session.scalars(rows.order_by(RecoveryRow.id)):
        if row.job in names and row.ended_at is not None:
            phases = {one["name"]: float(one["duration_ms"]) for one in row.body["phases"]}
            found[row.job] = Recovered(names[row.job], row.body["cause"], row.body.get("gap_ms"), phases)
    return tuple(found.values())
