"""Checks starts from older points: access, and whether the start would publish epochs again.

The check uses the epochs that drivers have reported. The host checks the causal log again before it changes the
checkpoint (`clonos.agent.restoring`).
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
    """Raise an error if the job `name` cannot start from the older point `point`.

    The reason: the job is started already; the savepoint is another user's or not COMPLETED; or epochs would be
    published again without `StartFrom.publish_again`. `job` is None if the request creates the job.
    """
    if job is not None and job.desired_state == DesiredState.RUNNING and job.state not in _ENDED:
        raise StateConflict(
            f"Job {job.name} is already started, so it cannot start from an older point.", hint="stop it first."
        )
    saved = await _savepoint(session, caller, point)
    if point.publish_again:
        return
    for history, after in await _histories(session, name, point, saved):
        newer = await _published_after(session, history, after, saved)
        if newer:
            query, epoch = newer
            raise WouldPublishAgain(
                f"Epoch {epoch} of {query} was published after that point and would be published again."
            )


async def _histories(
    session: AsyncSession, name: str, point: StartFrom, saved: SavepointRow | None
) -> list[tuple[list[str], Mapping[str, int] | int]]:
    """Return the jobs of each history, with the epochs to go back to (by query, or one for all queries).

    All jobs of one name are one history: each continues in the same checkpoint.
    """

    async def ids(named: str) -> list[str]:
        return list(await session.scalars(select(JobRow.id).where(JobRow.name == named)))

    if saved is None:
        return [(await ids(name), -1 if point.epoch is None else point.epoch)]
    histories: list[tuple[list[str], Mapping[str, int] | int]] = [(await ids(saved.job_name), saved.epochs)]
    if name != saved.job_name:
        histories.append((await ids(name), -1))  # the job's own epochs all come after the point of another job
    return histories


async def _savepoint(session: AsyncSession, caller: Principal, point: StartFrom) -> SavepointRow | None:
    if point.savepoint is None:
        return None
    row = await savepoints.get(session, point.savepoint)
    caller.must_own((await jobs.get(session, row.job, deleted=True)).created_by)
    if row.state != "COMPLETED":
        raise StateConflict(f"Savepoint {row.name} is {row.state}.", hint="start from one that is COMPLETED.")
    return row


async def _published_after(
    session: AsyncSession, history: list[str], after: Mapping[str, int] | int, saved: SavepointRow | None
) -> tuple[str, int] | None:
    """Return a query and an epoch that finished after the point; None: none is reported.

    The comparison uses times, because an earlier start from an older point repeats epoch numbers.
    """
    for query in await session.scalars(select(EpochRow.query).where(EpochRow.job.in_(history)).distinct()):
        of_query = (EpochRow.job.in_(history), EpochRow.query == query)
        epoch = after if isinstance(after, int) else after.get(query, -1)
        times = select(EpochRow.completed_at).where(*of_query, EpochRow.epoch == epoch)
        since = _latest(list(await session.scalars(times)), saved)
        newer = select(EpochRow.epoch).where(*of_query, EpochRow.completed_at > since)
        latest = (await session.scalars(newer.order_by(EpochRow.completed_at.desc()).limit(1))).first()
        if latest is not None:
            return query, latest
    return None


def _latest(times: list[datetime], saved: SavepointRow | None) -> datetime:
    """When the epoch of the point was finished: in the newest lineage, or in the savepoint's."""
    if saved is None:
        return max(times, default=_NEVER)
    taken = saved.completed_at or saved.created_at
    # a driver's clock may be ahead of the database's.
    return max((at for at in times if at <= taken), default=min(times, default=_NEVER))
