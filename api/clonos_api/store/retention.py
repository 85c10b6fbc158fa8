"""Retention: removes old rows of the history. The leader calls `prune` periodically."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, delete, exists, func, or_, select, true, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.hosts import HostState
from clonos.standby.states import FINAL_STATES
from clonos_api.store.db.clock import clock
from clonos_api.store.db.database import Database
from clonos_api.store.logs import KEPT_BYTES
from clonos_api.store.series import KEPT_S
from clonos_api.store.tables import (
    ArtifactPartRow,
    ArtifactRow,
    AuditRow,
    Base,
    EpochRow,
    EventRow,
    ExceptionRow,
    GenerationRow,
    HostRow,
    IdempotencyRow,
    JobRow,
    JobVersionRow,
    LogChunkRow,
    OperationRow,
    RecoveryRow,
    RunRow,
    SavepointRow,
    SeriesRow,
    StandbyRow,
    TaskRow,
    TokenRow,
)

_DAY_S: Final = 86_400.0
_BATCH: Final = 1000
_JOBS_BATCH: Final = 10  # deleting a job also deletes its rows in other tables

# Versions that run, or that a start may run: the newest ones are not always among them. The fields of `moving` are
# as in `planned_moves.Moving`, and those of `spec` as in `RunSpec`.
_OF_JOB: Final = (
    JobRow.version,
    JobRow.observed_version,
    JobRow.moving["version"].as_integer(),
    JobRow.moving["previous"].as_integer(),
)
_OF_RUN: Final = (
    RunRow.spec["version"].as_integer(),
    RunRow.spec["finish_for"].as_integer(),
    RunRow.spec[("next", "version")].as_integer(),
    RunRow.spec[("next", "finish_for")].as_integer(),
)
_STARTS: Final = or_(
    exists()
    .where(JobRow.id == JobVersionRow.job, or_(*(version == JobVersionRow.version for version in _OF_JOB)))
    .correlate(JobVersionRow),
    # The newest run of a job may have ended: the next one has not been placed yet.
    exists()
    .where(
        JobRow.id == JobVersionRow.job,
        RunRow.job == JobVersionRow.job,
        or_(RunRow.ended_at.is_(None), RunRow.id == JobRow.run),
        or_(*(version == JobVersionRow.version for version in _OF_RUN)),
    )
    .correlate(JobVersionRow),
)

Check = Callable[[AsyncSession], Awaitable[None]]


@dataclass(frozen=True)
class Limits:
    """Limits of the stored history: the number of newest rows per job or in total, or an age in seconds."""

    epochs: int = 1000  # finished epochs per job, of all queries
    generations: int = 1000  # generations per job
    recoveries: int = 200  # ended recoveries per job
    exceptions: int = 200  # reported errors per job
    ended_runs: int = 100  # ended runs per job
    ended_standbys: int = 100  # promoted and failed standbys per job
    versions: int = 100  # versions of the specification per job
    log_bytes: int = KEPT_BYTES  # bytes of the drivers' log per job
    events: int = 100_000  # events in total
    refusals: int = 20_000  # audit entries of refused requests in total
    changes_s: float = 400 * _DAY_S  # age of the other audit entries: refused requests cannot evict them
    ended_operations_s: float = 7 * _DAY_S  # age of operations and their tasks, since their end
    idempotency_s: float = _DAY_S  # age of stored responses, since the request
    deleted_jobs_s: float = 7 * _DAY_S  # age of jobs, since their deletion; jobs with savepoints remain
    ended_tokens_s: float = 30 * _DAY_S  # age of tokens, since their expiry or revocation
    unused_artifacts_s: float = 30 * _DAY_S  # age of unused artifacts, since their upload
    unfinished_uploads_s: float = 3600.0  # age of parts of artifacts without an artifact
    removed_hosts_s: float = 7 * _DAY_S  # age of removed hosts, since their last heartbeat


async def prune(database: Database, limits: Limits | None = None, *, check: Check | None = None) -> dict[str, int]:
    """Remove rows beyond the limits; return table → removed rows, without those that were removed with their job.

    `check` runs at the start of each transaction, such as the leader's `lease.check`. If it raises, that transaction is
    rolled back and the later ones are omitted.
    """
    pruning = _Pruning(database, limits or Limits(), check)
    await pruning.by_job()
    await pruning.logs()
    await pruning.by_number()
    await pruning.by_age()
    return pruning.dropped


class _Pruning:
    """One pass."""

    def __init__(self, database: Database, limits: Limits, check: Check | None) -> None:
        self._database = database
        self._limits = limits
        self._check = check
        self.dropped: dict[str, int] = {}

    async def by_job(self) -> None:
        """Retain the newest rows of each job, and the versions that run or that its next start runs."""
        limits = self._limits
        rules: list[tuple[type[Any], Any, int, ColumnElement[bool]]] = [
            (EpochRow, EpochRow.completed_at, limits.epochs, true()),
            (GenerationRow, GenerationRow.claimed_at, limits.generations, true()),
            (RecoveryRow, RecoveryRow.started_at, limits.recoveries, RecoveryRow.ended_at.is_not(None)),
            (ExceptionRow, ExceptionRow.seq, limits.exceptions, true()),
            (RunRow, RunRow.created_at, limits.ended_runs, RunRow.ended_at.is_not(None)),
            (StandbyRow, StandbyRow.since, limits.ended_standbys, StandbyRow.state.in_(FINAL_STATES)),
            (JobVersionRow, JobVersionRow.version, limits.versions, ~_STARTS),
        ]
        for table, order, limit, which in rules:
            async with self._database.reading() as session:
                query = select(table.job).where(which).group_by(table.job).having(func.count() > limit)
                jobs = list(await session.scalars(query))
                newest = select(order).where(which).order_by(order.desc()).offset(limit).limit(1)
                ends = [(job, (await session.scalars(newest.where(table.job == job))).first()) for job in jobs]
            for job, end in ends:
                if end is not None:
                    await self._delete(table, and_(table.job == job, order <= end, which))

    async def logs(self) -> None:
        """Retain the newest bytes of each job's log."""
        async with self._database.reading() as session:
            size = func.sum(LogChunkRow.size)
            query = select(LogChunkRow.job).group_by(LogChunkRow.job).having(size > self._limits.log_bytes)
            jobs = list(await session.scalars(query))
        for job in jobs:
            async with self._database.reading() as session:
                sizes = select(LogChunkRow.seq, LogChunkRow.size).where(LogChunkRow.job == job)
                total, end = 0, 0
                for seq, size_bytes in await session.execute(sizes.order_by(LogChunkRow.seq.desc())):
                    total += size_bytes
                    if total > self._limits.log_bytes:
                        end = seq
                        break
            await self._delete(LogChunkRow, and_(LogChunkRow.job == job, LogChunkRow.seq <= end))

    async def by_number(self) -> None:
        """Retain the newest rows of the service."""
        refused = AuditRow.outcome == "denied"
        rules: list[tuple[type[EventRow] | type[AuditRow], int, ColumnElement[bool]]] = [
            (EventRow, self._limits.events, true()),
            (AuditRow, self._limits.refusals, refused),
        ]
        for table, limit, which in rules:
            async with self._database.reading() as session:
                # Numbers have gaps, so rows are counted.
                older = select(table.seq).where(which).order_by(table.seq.desc()).offset(limit).limit(1)
                end = (await session.scalars(older)).first()
            if end is not None:
                await self._delete(table, and_(which, table.seq <= end))

    async def by_age(self) -> None:
        """Remove ended rows by age."""
        limits = self._limits
        await self._delete(AuditRow, and_(AuditRow.outcome != "denied", AuditRow.at < clock(-limits.changes_s)))
        ended = clock(-limits.ended_operations_s)
        await self._delete(OperationRow, OperationRow.ended_at < ended)
        # Including tasks without a result: their operation has failed long ago.
        await self._delete(
            TaskRow, or_(TaskRow.ended_at < ended, TaskRow.created_at < clock(-2 * limits.ended_operations_s))
        )
        for width_s, kept_s in KEPT_S.items():
            await self._delete(SeriesRow, and_(SeriesRow.width_s == width_s, SeriesRow.start < clock(-kept_s)))
        await self._delete(IdempotencyRow, IdempotencyRow.created_at < clock(-limits.idempotency_s))
        over = clock(-limits.ended_tokens_s)
        await self._delete(TokenRow, or_(TokenRow.expires_at < over, TokenRow.revoked_at < over))
        deleted = JobRow.deleted_at < clock(-limits.deleted_jobs_s)
        await self._delete(JobRow, and_(deleted, ~exists().where(SavepointRow.job == JobRow.id)), batch=_JOBS_BATCH)
        unused = [~exists().where(table.artifact == ArtifactRow.id) for table in (JobRow, JobVersionRow, SavepointRow)]
        old = ArtifactRow.created_at < clock(-limits.unused_artifacts_s)
        await self._delete(ArtifactRow, and_(old, *unused), batch=_JOBS_BATCH)
        orphaned = ~exists().where(ArtifactRow.upload == ArtifactPartRow.upload)
        stored = ArtifactPartRow.stored_at < clock(-limits.unfinished_uploads_s)
        await self._delete(ArtifactPartRow, and_(stored, orphaned), batch=_JOBS_BATCH)
        removed = and_(HostRow.state == HostState.REMOVED, HostRow.heartbeat_at < clock(-limits.removed_hosts_s))
        unneeded = [~exists().where(table.host == HostRow.id) for table in (RunRow, TaskRow, StandbyRow)]
        await self._delete(HostRow, and_(removed, *unneeded))

    async def _delete(self, table: type[Base], which: ColumnElement[bool], *, batch: int = _BATCH) -> None:
        keys = list(table.__table__.primary_key)
        while True:
            async with self._transaction() as session:
                chosen = (await session.execute(select(*keys).where(which).limit(batch))).all()
                for at in range(0, len(chosen), 200):  # SQLite limits the number of parameters
                    where = tuple_(*keys).in_(chosen[at : at + 200])
                    await session.execute(delete(table).where(where).execution_options(synchronize_session=False))
            if chosen:
                name = table.__tablename__
                self.dropped[name] = self.dropped.get(name, 0) + len(chosen)
            if len(chosen) < batch:
                return

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncSession]:
        async with self._database.transaction() as session:
            if self._check is not None:
                await self._check(session)
            yield session
