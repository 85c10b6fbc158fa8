"""What lists show beside their rows, read for a whole page at once."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.store.clock import clock
from clonos_api.store.lease import NAME
from clonos_api.store.tables import AgentRow, LeaseRow, LogChunkRow, RunRow


async def hosts_of_runs(session: AsyncSession, ids: Collection[str | None]) -> dict[str, str]:
    """Run id → name of its host."""
    query = select(RunRow.id, AgentRow.name).join(AgentRow, AgentRow.id == RunRow.agent)
    wanted = [one for one in ids if one is not None]
    return dict(list(await session.execute(query.where(RunRow.id.in_(wanted))))) if wanted else {}


async def host_names(session: AsyncSession) -> dict[str, str]:
    """Agent id → name, of removed ones too."""
    return dict(list(await session.execute(select(AgentRow.id, AgentRow.name))))


async def ends_of_logs(session: AsyncSession, jobs: Collection[str]) -> dict[str, int]:
    """Job id → number of the newest piece of its log."""
    query = (
        select(LogChunkRow.job, func.max(LogChunkRow.seq)).where(LogChunkRow.job.in_(jobs)).group_by(LogChunkRow.job)
    )
    return dict(list(await session.execute(query)))


async def leader(session: AsyncSession) -> str | None:
    """The replica that leads, by the database's clock."""
    query = select(LeaseRow.holder).where(LeaseRow.name == NAME, LeaseRow.expires_at > clock())
    return (await session.execute(query)).scalar_one_or_none()
