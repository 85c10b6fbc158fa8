"""What agents push is taken in for several runs at once: which rows that locks, and what comes of each piece.

Jobs before runs, both by id, as everywhere. The lock of a job also makes one of several pushes about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import ClonosError
from clonos_api.store.tables import AgentRow, JobRow, RunRow


@dataclass(frozen=True)
class LockedJob:
    """What ingestion needs of a job."""

    id: str
    generation: int
    restarts: int
    metrics: dict[str, Any] | None


@dataclass(frozen=True)
class LockedRun:
    """What ingestion needs of a run.

    Attributes:
        agent: Name of its host.
    """

    id: str
    job: str
    state: str
    events_offset: int
    told: dict[str, Any]
    log_offset: int
    checkpoint_bytes: dict[str, int] | None
    agent: str


@dataclass(frozen=True)
class Locked:
    """Rows that nobody else changes until the transaction ends, by id; jobs of those runs that tell events."""

    jobs: dict[str, LockedJob]
    runs: dict[str, LockedRun]


async def lock(
    session: AsyncSession, *, events: Iterable[str] = (), logs: Iterable[str] = (), agent: str | None = None
) -> Locked:
    """Lock what a push changes; runs that are not there, or not of `agent`, are left out.

    Args:
        session: A transaction.
        events: Runs that tell events.
        logs: Runs that tell their log.
        agent: Id of the agent that tells; None: any.
    """
    telling = sorted(set(events))
    jobs: dict[str, LockedJob] = {}
    own = () if agent is None else (RunRow.agent == agent,)
    if telling:
        of_runs = select(RunRow.job).where(RunRow.id.in_(telling), *own)
        told_about = select(JobRow.id, JobRow.generation, JobRow.restarts, JobRow.metrics)
        told_about = told_about.where(JobRow.id.in_(of_runs)).order_by(JobRow.id).with_for_update(key_share=True)
        jobs = {row.id: LockedJob(*row) for row in await session.execute(told_about)}
    query = (
        select(
            RunRow.id,
            RunRow.job,
            RunRow.state,
            RunRow.events_offset,
            RunRow.told,
            RunRow.log_offset,
            RunRow.checkpoint_bytes,
            AgentRow.name,
        )
        .join(AgentRow, AgentRow.id == RunRow.agent)
        .where(RunRow.id.in_(sorted({*telling, *logs})), *own)
        .order_by(RunRow.id)
        .with_for_update(key_share=True, of=RunRow)
    )
    return Locked(jobs, {row.id: LockedRun(*row) for row in await session.execute(query)})


def answer(taken: int | ClonosError) -> int:
    """The offset.

    Raises:
        ClonosError: The piece was refused.
    """
    if isinstance(taken, ClonosError):
        raise taken
    return taken
