"""Retention: history is bounded, whatever happens. The leader prunes now and then, in small transactions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, delete, exists, func, or_, select, true, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.hosts import HostState
from clonos.standby.states import OVER
from clonos_api.store.clock import clock
from clonos_api.store.database import Database
from clonos_api.store.logs import KEPT_BYTES
from clonos_api.store.tables import (
    AgentRow,
    ArtifactRow,
    AuditRow,
    Base,
    EpochRow,
    EventRow,
    ExceptionRow,
    GenerationRow,
    IdempotencyRow,
    JobRow,
    JobVersionRow,
    LogChunkRow,
    OperationRow,
    RecoveryRow,
    RunRow,
    SavepointRow,
    StandbyRow,
    TaskRow,
    TokenRow,
)

_DAY_S: Final = 86_400.0
_BATCH: Final = 1000
_JOBS_BATCH: Final = 10  # all that a job has goes with it

Check = Callable[[AsyncSession], Awaitable[None]]


@dataclass(frozen=True)
class Limits:
    """How much is kept.

    Attributes:
        epochs: Newest ones, for each job.
        generations: For each job.
        recoveries: That have ended, for each job.
        exceptions: For each job.
        ended_runs: For each job.
        ended_standbys: For each job: promoted, or failed.
        versions: Specifications, for each job.
        log_bytes: Of the drivers' log, for each job.
        events: Of the whole service.
        audit: Entries, of the whole service.
        ended_operations_s: How long after their end; their tasks too.
        idempotency_s: How long a request may be repeated.
        deleted_jobs_s: How long after their deletion, with all that is theirs; longer while they have savepoints.
        ended_tokens_s: How long after their expiry or revocation.
        unused_artifacts_s: How long after their upload.
        removed_agents_s: How long after they were last heard of.
    """

    epochs: int = 1000
    generations: int = 1000
    recoveries: int = 200
    exceptions: int = 200
    ended_runs: int = 100
    ended_standbys: int = 100
    versions: int = 100
    log_bytes: int = KEPT_BYTES
    events: int = 100_000
    audit: int = 100_000
    ended_operations_s: float = 7 * _DAY_S
    idempotency_s: float = _DAY_S
    deleted_jobs_s: float = 7 * _DAY_S
    ended_tokens_s: float = 30 * _DAY_S
    unused_artifacts_s: float = 30 * _DAY_S
    removed_agents_s: float = 7 * _DAY_S


async def prune(database: Database, limits: Limits | None = None, *, check: Check | None = None) -> dict[str, int]:
    """Drop what is beyond the limits.

    Args:
        database: The store.
        limits: How much is kept.
        check: Awaited at the start of each transaction; `lease.check` of the leader.

    Returns:
        Table → rows dropped; what goes with a deleted job is not counted.
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
        """The newest of each job stay."""
        limits = self._limits
        rules: list[tuple[type[Any], Any, int, ColumnElement[bool]]] = [
            (EpochRow, EpochRow.completed_at, limits.epochs, true()),
            (GenerationRow, GenerationRow.claimed_at, limits.generations, true()),
            (RecoveryRow, RecoveryRow.started_at, limits.recoveries, RecoveryRow.ended_at.is_not(None)),
            (ExceptionRow, ExceptionRow.seq, limits.exceptions, true()),
            (RunRow, RunRow.created_at, limits.ended_runs, RunRow.ended_at.is_not(None)),
            (StandbyRow, StandbyRow.since, limits.ended_standbys, StandbyRow.state.in_(OVER)),
            (JobVersionRow, JobVersionRow.version, limits.versions, true()),
        ]
        for table, order, kept, which in rules:
            async with self._database.reading() as session:
                query = select(table.job).where(which).group_by(table.job).having(func.count() > kept)
                jobs = list(await session.scalars(query))
                newest = select(order).where(which).order_by(order.desc()).offset(kept).limit(1)
                ends = [(job, (await session.scalars(newest.where(table.job == job))).first()) for job in jobs]
            for job, end in ends:
                if end is not None:
                    await self._delete(table, and_(table.job == job, order <= end, which))

    async def logs(self) -> None:
        """So many bytes of each job stay."""
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
        """So many of the whole service stay."""
        rules: tuple[tuple[type[Any], int], ...] = ((EventRow, self._limits.events), (AuditRow, self._limits.audit))
        for table, kept in rules:
            async with self._database.reading() as session:
                newest = (await session.execute(select(func.max(table.seq)))).scalar() or 0
            await self._delete(table, table.seq <= newest - kept)

    async def by_age(self) -> None:
        """What is over goes after a while."""
        limits = self._limits
        ended = clock(-limits.ended_operations_s)
        await self._delete(OperationRow, OperationRow.ended_at < ended)
        # Also what an agent never answered: its operation was given up long ago.
        await self._delete(
            TaskRow, or_(TaskRow.ended_at < ended, TaskRow.created_at < clock(-2 * limits.ended_operations_s))
        )
        await self._delete(IdempotencyRow, IdempotencyRow.created_at < clock(-limits.idempotency_s))
        over = clock(-limits.ended_tokens_s)
        await self._delete(TokenRow, or_(TokenRow.expires_at < over, TokenRow.revoked_at < over))
        deleted = JobRow.deleted_at < clock(-limits.deleted_jobs_s)
        await self._delete(JobRow, and_(deleted, ~exists().where(SavepointRow.job == JobRow.id)), batch=_JOBS_BATCH)
        unused = [~exists().where(table.artifact == ArtifactRow.id) for table in (JobRow, JobVersionRow, SavepointRow)]
        old = ArtifactRow.created_at < clock(-limits.unused_artifacts_s)
        await self._delete(ArtifactRow, and_(old, *unused), batch=_JOBS_BATCH)
        gone = and_(AgentRow.state == HostState.REMOVED, AgentRow.heartbeat_at < clock(-limits.removed_agents_s))
        unneeded = [~exists().where(table.agent == AgentRow.id) for table in (RunRow, TaskRow, StandbyRow)]
        await self._delete(AgentRow, and_(gone, *unneeded))

    async def _delete(self, table: type[Base], which: ColumnElement[bool], *, batch: int = _BATCH) -> None:
        keys = list(table.__table__.primary_key)
        while True:
            async with self._transaction() as session:
                chosen = (await session.execute(select(*keys).where(which).limit(batch))).all()
                for at in range(0, len(chosen), 200):  # SQLite takes so many parameters and no more
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
