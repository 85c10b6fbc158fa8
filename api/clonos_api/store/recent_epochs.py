"""The newest epochs of a job, and numbers per second from them.

Epochs have the times of the driver's host, whose clock may differ from the database's. So "now" is the time of the
newest epoch there, plus the time since this control plane received it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.checkpoints import EpochCheckpoint
from clonos_api.store.db.clock import now
from clonos_api.store.tables import EpochRow, JobRow

RATED: Final = timedelta(seconds=10)


@dataclass(frozen=True)
class RecentEpochs:
    """Epochs of one query that finished lately."""

    epochs: list[EpochCheckpoint]
    since: datetime  # epochs that finished later count for rates

    def per_second(self, figure: Callable[[EpochCheckpoint], int]) -> float:
        """Return the sum of a figure of the epochs in the last ten seconds, per second.

        An epoch that took longer than ten seconds counts for its whole duration.
        """
        return sum(map(figure, self.rated)) / self.seconds

    @property
    def rated(self) -> Iterator[EpochCheckpoint]:
        """The epochs that count for rates. The records of a repeated epoch were counted when it finished first."""
        return (epoch for epoch in self.epochs if epoch.completed_at > self.since and not epoch.repeated)

    @property
    def seconds(self) -> float:
        """The seconds that rates are computed for."""
        longest_ms = max((epoch.duration_ms for epoch in self.rated), default=0.0)
        return max(RATED.total_seconds(), longest_ms / 1000)


async def recent_epochs(session: AsyncSession, job: JobRow, span: timedelta = RATED) -> dict[str, RecentEpochs]:
    """Return the epochs of a job that finished within `span`, by query; a query without such an epoch has an empty
    list. Each of the last ten seconds of a live query counts as an epoch.
    """
    moment = _driver_now(job) or await now(session)
    recent: dict[str, RecentEpochs] = defaultdict(lambda: RecentEpochs([], moment - RATED))
    # Later times are of an earlier host, whose clock was ahead.
    rows = select(EpochRow).where(
        EpochRow.job == job.id, EpochRow.completed_at > moment - span, EpochRow.completed_at <= moment
    )
    for row in await session.scalars(rows):
        if not row.body.live:  # which has the figures of minutes
            recent[row.query].epochs.append(row.body)
    for name, figures in job.figures.queries.items():
        recent[name].epochs.extend(
            second for second in figures.seconds if moment - span < second.completed_at <= moment
        )
    return recent


def _driver_now(job: JobRow) -> datetime | None:
    """Return the time by the clock of the driver's host; None: it has reported no epoch."""
    newest, received = job.figures.at, job.figures.received_at
    if newest is None or received is None:
        return None
    return newest + max(datetime.now(UTC) - received, timedelta())
