"""Reads the figures of all jobs and hosts for Prometheus, with few database queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.jobs.spec import JobSpec
from clonos.resources.jobs import JobState
from clonos_api.store import hosts, recoveries, standbys, tokens, verifications
from clonos_api.store.columns import JobFigures, QueryFigures
from clonos_api.store.tables import CounterRow, JobRow, RecoveryRow, RunRow, StandbyRow
from clonos_api.store.tokens import Expiring


@dataclass(frozen=True, slots=True)
class JobSample:
    """The figures of a job at one moment."""

    id: str
    name: str
    state: str
    generation: int  # of the newest claim
    queries: Mapping[str, QueryFigures]  # query → its figures, as the newest driver reported them
    counters: Mapping[str, int]  # name → value of `CounterRow`
    checkpoint_bytes: Mapping[str, int]  # query → bytes of its checkpoint, as measured by the agent of the newest run
    standbys_wanted: int  # number of dedicated standbys in the specification
    interval_s: float = 0.0  # minimum interval between two epochs; 0 for none
    epoch_at: datetime | None = None  # end of the job's newest epoch
    # output topic → time since which an open transaction blocks its readers
    open_transactions: Mapping[str, datetime] = field(default_factory=dict)
    kafka_silent_since: datetime | None = None  # None: Kafka answers its driver, or the job does not run
    contradicted: bool | None = None  # whether its newest verification contradicts it; None: it was not verified


@dataclass(frozen=True, slots=True)
class StandbySample:
    """A standby that can be promoted."""

    id: str
    job: str  # name
    host: str  # name
    state: str
    lag: int | None  # committed epochs that it has not read yet; None until it has reported


@dataclass(frozen=True, slots=True)
class RecoverySample:
    """The newest ended recovery of a job."""

    job: str  # name
    cause: str
    downtime_ms: float | None  # as in `Recovery`; None if unknown
    phases_ms: Mapping[str, float]  # phase → duration


@dataclass(frozen=True, slots=True)
class HostSample:
    """The figures of a host at one moment."""

    name: str
    state: str
    slots: int
    used: int  # number of open runs; each uses a slot
    pool_available: int  # number of warm pool drivers without a job
    rival_at: datetime | None = None  # newest request of a process that another one has replaced as its agent


@dataclass(frozen=True)
class MetricsSample:
    """What ``/metrics`` reports: the figures of all jobs, standbys, newest recoveries and hosts."""

    jobs: tuple[JobSample, ...]
    standbys: tuple[StandbySample, ...]
    recoveries: tuple[RecoverySample, ...]  # at most one per job
    hosts: tuple[HostSample, ...]
    tokens: Expiring = field(default_factory=Expiring)


async def read(session: AsyncSession) -> MetricsSample:
    """Read the figures of all jobs and hosts for ``/metrics``.

    On PostgreSQL each query has its own snapshot, so figures of one sample may be some milliseconds apart.
    """
    jobs = await _jobs(session)
    names = {job.id: job.name for job in jobs}
    host_rows = {host.id: host for host in await hosts.every(session)}
    used = await hosts.loads(session)
    rows = list(await session.scalars(select(StandbyRow).where(StandbyRow.state.in_(standbys.WAITING))))
    lags = await standbys.lags(session, rows)
    return MetricsSample(
        jobs=jobs,
        standbys=tuple(
            StandbySample(row.id, names[row.job], host_rows[row.host].name, row.state, lags.get(row.id))
            for row in rows
            if row.job in names and row.host in host_rows
        ),
        recoveries=await _recoveries(session, names),
        hosts=tuple(
            HostSample(host.name, host.state, host.slots, used.get(host.id, 0), host.pool_available, host.rival_at)
            for host in host_rows.values()
        ),
        tokens=await tokens.expiring(session),
    )


async def _jobs(session: AsyncSession) -> tuple[JobSample, ...]:
    columns = (JobRow.id, JobRow.name, JobRow.state, JobRow.generation, JobRow.metrics, JobRow.spec)
    rows = select(*columns, RunRow.checkpoint_bytes).outerjoin(RunRow, RunRow.id == JobRow.run)
    proofs = await verifications.newest(session)
    sums: dict[str, dict[str, int]] = {}
    for job, name, value in await session.execute(select(CounterRow.job, CounterRow.name, CounterRow.value)):
        sums.setdefault(job, {})[name] = value
    samples = []
    for id, name, state, generation, metrics, spec, sizes in await session.execute(
        rows.where(JobRow.deleted_at.is_(None)).order_by(JobRow.name)
    ):
        figures = metrics or JobFigures()
        kafka = figures.kafka if state == JobState.RUNNING else None
        sample = JobSample(
            id=id,
            name=name,
            state=state,
            generation=generation,
            queries=figures.queries,
            counters=sums.get(id, {}),
            checkpoint_bytes=sizes or {},
            standbys_wanted=spec.spec.standby.dedicated_replicas,
            interval_s=_longest_interval_ms(figures, spec) / 1000,
            epoch_at=figures.at,
            open_transactions=figures.open_transactions,
            kafka_silent_since=kafka.silent_since if kafka is not None else None,
            contradicted=proofs[id].contradicted if id in proofs else None,
        )
        samples.append(sample)
    return tuple(samples)


def _longest_interval_ms(figures: JobFigures, spec: JobSpec) -> int:
    queries = figures.queries.values()
    return max((query.paced_ms(spec) for query in queries), default=spec.spec.trigger.interval_ms)


async def _recoveries(session: AsyncSession, names: Mapping[str, str]) -> tuple[RecoverySample, ...]:
    samples = {}
    for row in await session.scalars(recoveries.newest_of_jobs(RecoveryRow.ended_at.is_not(None))):
        if row.job in names and row.ended_at is not None:
            phases = {phase.name: phase.duration_ms for phase in row.body.phases}
            samples[row.job] = RecoverySample(names[row.job], row.body.cause, row.body.downtime_ms, phases)
    return tuple(samples.values())
