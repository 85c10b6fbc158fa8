"""Reads names and positions that lists show beside their rows, for a whole page at once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.store.db.clock import clock
from clonos_api.store.lease import AHEAD_S, NAME, TTL_S
from clonos_api.store.tables import HostRow, LeaseRow, LogChunkRow, RunRow

LEADERLESS_S: Final = 5.0  # a takeover is over by then


async def hosts_of_runs(session: AsyncSession, ids: Collection[str | None]) -> dict[str, str]:
    """Return the name of the host of each run, by run id."""
    query = select(RunRow.id, HostRow.name).join(HostRow, HostRow.id == RunRow.host)
    run_ids = [id for id in ids if id is not None]
    return dict(list(await session.execute(query.where(RunRow.id.in_(run_ids))))) if run_ids else {}


async def host_names(session: AsyncSession) -> dict[str, str]:
    """Return the name of each host, by host id, including removed hosts."""
    return dict(list(await session.execute(select(HostRow.id, HostRow.name))))


async def ends_of_logs(session: AsyncSession, jobs: Collection[str]) -> dict[str, int]:
    """Return the number of the newest stored chunk of each job's log, by job id: it grows when the log grows."""
    query = (
        select(LogChunkRow.job, func.max(LogChunkRow.seq)).where(LogChunkRow.job.in_(jobs)).group_by(LogChunkRow.job)
    )
    return dict(list(await session.execute(query)))


async def leaderless(session: AsyncSession) -> bool:
    """Whether no replica has held the leader's lease for some seconds, or one holds it for longer than it can."""
    query = select(LeaseRow.name).where(
        LeaseRow.name == NAME,
        LeaseRow.expires_at > clock(-LEADERLESS_S),
        LeaseRow.expires_at <= clock(TTL_S + AHEAD_S),
    )
    return (await session.execute(query)).one_or_none() is None


async def leads(session: AsyncSession, replica: str) -> bool:
    """Whether the replica with this name holds the leader's lease."""
    query = select(LeaseRow.holder).where(LeaseRow.name == NAME, LeaseRow.expires_at > clock())
    return ((await session.execute(query)).scalar_one_or_none() or "").startswith(f"{replica}:")
