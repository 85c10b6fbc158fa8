"""Older points to start from: who may, and whether that would publish something again.

Looked at when somebody asks. What no driver has told yet only the causal log knows: the host looks there once
more before it touches the checkpoint (`clonos.agent.restoring`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import StateConflict, WouldPublishAgain
from clonos.resources.jobs import DesiredState, JobState, StartFrom
from clonos_api.auth import Principal
from clonos_api.store import jobs, savepoints
from clonos_api.store.tables import EpochRow, JobRow, SavepointRow

_ENDED: Final = frozenset({JobState.FAILED, JobState.FINISHED})
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


async def check(session: AsyncSession, caller: Principal, name: str, point: StartFrom, job: JobRow | None) -> None:
    """Refuse a start from `point` that is not the caller's to ask for, or that would publish again unasked.

    Args:
        session: A transaction.
        caller: Who asks, and may start the job itself.
        name: The job's.
        point: Where it is to start.
        job: The job; None: it is just being made.

    Raises:
        StateConflict: The job runs, or is to; or the savepoint is not whole.
        NotFound: There is no such savepoint.
        Forbidden: The savepoint belongs to somebody else's job.
        WouldPublishAgain: Something was published after that point, and `point` does not say that it may be again.
    """
    if job is not None and job.desired_state == DesiredState.RUNNING and job.state not in _ENDED:
        raise StateConflict(
            f"Job {job.name} is to run already, so it cannot start from an older point.", hint="stop it first."
        )
    saved = await _savepoint(session, caller, point)
    if point.publish_again:
        return
    for history, after in await _histories(session, name, point, saved):
        newer = await _published_after(session, history, after, saved)
        if newer:
            query, epoch = newer
            raise WouldPublishAgain(f"Epoch {epoch} of {query} was published after that point, and would be again.")


async def _histories(
    session: AsyncSession, name: str, point: StartFrom, saved: SavepointRow | None
) -> list[tuple[list[str], Mapping[str, int] | int]]:
    """Jobs that published one after the other, with the epochs (query → epoch; or that of all) to go back to.

    All jobs of one name are one: the next one goes on in the same checkpoint.
    """

    async def of(named: str) -> list[str]:
        return list(await session.scalars(select(JobRow.id).where(JobRow.name == named)))

    if saved is None:
        return [(await of(name), -1 if point.epoch is None else point.epoch)]
    found: list[tuple[list[str], Mapping[str, int] | int]] = [(await of(saved.job_name), saved.epochs)]
    if name != saved.job_name:
        found.append((await of(name), -1))  # all that this one has published is after another one's point
    return found


async def _savepoint(session: AsyncSession, caller: Principal, point: StartFrom) -> SavepointRow | None:
    if point.savepoint is None:
        return None
    row = await savepoints.get(session, point.savepoint)
    caller.must_own((await jobs.get(session, row.job, deleted=True)).owner)
    if row.state != "COMPLETED":
        raise StateConflict(f"Savepoint {row.name} is {row.state}.", hint="start from one that is COMPLETED.")
    return row


async def _published_after(
    session: AsyncSession, history: list[str], after: Mapping[str, int] | int, saved: SavepointRow | None
) -> tuple[str, int] | None:
    """A query, and an epoch of it, that was finished after the point; None: there is none, as far as is known.

    By time, not by number: after an earlier start from an older point the same numbers came again.
    """
    for query in await session.scalars(select(EpochRow.query).where(EpochRow.job.in_(history)).distinct()):
        of_query = (EpochRow.job.in_(history), EpochRow.query == query)
        epoch = after if isinstance(after, int) else after.get(query, -1)
        times = select(EpochRow.completed_at).where(*of_query, EpochRow.epoch == epoch)
        since = _latest(list(await session.scalars(times)), saved)
        newer = select(EpochRow.epoch).where(*of_query, EpochRow.completed_at > since)
        found = (await session.scalars(newer.order_by(EpochRow.completed_at.desc()).limit(1))).first()
        if found is not None:
            return query, found
    return None


def _latest(times: list[datetime], saved: SavepointRow | None) -> datetime:
    """When the epoch of the point was finished: in the newest lineage, or in that of the savepoint."""
    if saved is None:
        return max(times, default=_NEVER)
    taken = saved.completed_at or saved.created_at
    # A driver's clock may be ahead of the database's.
    return max((at for at in times if at <= taken), default=min(times, default=_NEVER))
