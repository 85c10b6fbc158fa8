"""Figures of jobs over time: sums of short intervals (`SHORT_S`) for the last hours, and of long ones for a week.

The figures of an epoch belong to the interval in which it finished. An interval without epochs has no row, so that a
chart shows a gap. Durations and latencies are counted in classes, each 19 % longer than the one before
(`duration_class`): the sums of classes give percentiles of any range.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from sqlalchemy import bindparam, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.store.columns import Tally
from clonos_api.store.db.bulk import insert_all
from clonos_api.store.tables import SeriesRow, table_of

SHORT_S: Final = 10
LONG_S: Final = 600
# Interval → how long its rows are stored, in seconds.
KEPT_S: Final = {SHORT_S: 2 * 3600.0, LONG_S: 8 * 86_400.0}
_CLOCKS_S: Final = 600.0  # the clock of a driver's host may be ahead of this machine's
_PER_DOUBLING: Final = 4
_CHUNK: Final = 100  # SQLite limits the number of parameters
_SERIES: Final = table_of(SeriesRow).c
_KEYS: Final = (_SERIES.job, _SERIES.query, _SERIES.width_s, _SERIES.start)
_STORED: Final = select(*_KEYS, _SERIES.body).where(tuple_(*_KEYS).in_(bindparam("places", expanding=True)))


class Place(NamedTuple):
    """The interval of one query to which figures belong."""

    job: str
    query: str
    width_s: int
    start: datetime


def percentile(classes: Mapping[str, int], share: float) -> float | None:
    """Return the longest time of the class with this share of all; None without any. `classes`: class → number."""
    left = math.ceil(share * sum(classes.values()))
    for number in sorted(map(int, classes)):
        left -= classes[str(number)]
        if left <= 0:
            return float(2 ** (number / _PER_DOUBLING))
    return None


def duration_class(duration_ms: float) -> str:
    """Return the class of a duration: its longest one is 2^(n/4) ms.

    Example:
        >>> duration_class(100.0)
        '27'
    """
    return str(math.ceil(_PER_DOUBLING * math.log2(max(1.0, duration_ms))))


def places(job: str, query: str, at: datetime, *, now: datetime) -> Iterator[Place]:
    """Yield the intervals of a moment: the short one, and the long one, unless they are too old or in the future.

    Job code can write events with any time. Retention would never remove intervals of the future.
    """
    for width_s, kept_s in KEPT_S.items():
        if -_CLOCKS_S <= (now - at).total_seconds() < kept_s:
            yield Place(job, query, width_s, datetime.fromtimestamp(at.timestamp() // width_s * width_s, UTC))


async def add(session: AsyncSession, tallies: Mapping[Place, Tally]) -> None:
    """Add figures to their intervals. The transaction has locked the rows of the jobs."""
    due = sorted(tallies)
    stored: dict[Place, Tally] = {}
    for at in range(0, len(due), _CHUNK):
        for job, query, width_s, start, body in await session.execute(_STORED, {"places": due[at : at + _CHUNK]}):
            stored[Place(job, query, width_s, start)] = body
    changed = []
    for place in due:
        tally = stored.get(place, Tally())
        tally.add(tallies[place])
        changed.append({**place._asdict(), "body": tally})
    names = ("job", "query", "width_s", "start")
    await insert_all(session, SeriesRow, changed, keys=names, replace=("body",))


async def read(session: AsyncSession, job: str, *, width_s: int, since: datetime, wider: int = 1) -> list[Interval]:
    """Return the figures of a job since a moment, by query and time.

    Args:
        session: A session.
        job: Id of the job.
        width_s: Length of the stored intervals: `SHORT_S` or `LONG_S`.
        since: Beginning of the oldest interval.
        wider: Number of stored intervals that are added up to one.
    """
    rows = select(SeriesRow).where(SeriesRow.job == job, SeriesRow.width_s == width_s, SeriesRow.start >= since)
    intervals: dict[tuple[str, datetime], Tally] = {}
    length_s = width_s * wider
    for row in await session.scalars(rows.order_by(SeriesRow.query, SeriesRow.start)):
        start = datetime.fromtimestamp(row.start.timestamp() // length_s * length_s, UTC)
        intervals.setdefault((row.query, start), Tally()).add(row.body)
    return [Interval(query, start, timedelta(seconds=length_s), tally) for (query, start), tally in intervals.items()]


class Interval(NamedTuple):
    """The figures of one query in one interval."""

    query: str
    start: datetime
    length: timedelta
    tally: Tally
