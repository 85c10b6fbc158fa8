"""Computes a job's figures over time, with what happened to the job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.series import Annotation, Series, SeriesPoint, SeriesRange
from clonos_api.store import series
from clonos_api.store.db.clock import now
from clonos_api.store.tables import JobVersionRow, RecoveryRow, SavepointRow

_ANNOTATIONS: Final = 200


class _Span(NamedTuple):
    length: timedelta
    width_s: int
    wider: int = 1  # number of stored intervals in one of the response


RANGES: Final[dict[SeriesRange, _Span]] = {
    "5m": _Span(timedelta(minutes=5), series.SHORT_S),
    "1h": _Span(timedelta(hours=1), series.SHORT_S, 3),
    "24h": _Span(timedelta(days=1), series.LONG_S),
    "7d": _Span(timedelta(days=7), series.LONG_S, 6),
}


async def of_job(session: AsyncSession, job: str, span: SeriesRange) -> Series:
    """Return the figures of a job in the newest `span`."""
    length, width_s, wider = RANGES[span]
    until = await now(session)
    interval_s = width_s * wider
    # Whole intervals: a part of one would look like a drop.
    since = datetime.fromtimestamp((until - length).timestamp() // interval_s * interval_s, UTC)
    queries: dict[str, list[SeriesPoint]] = {}
    for interval in await series.read(session, job, width_s=width_s, since=since, wider=wider):
        queries.setdefault(interval.query, []).append(_point(interval, until))
    return Series(
        range=span,
        since=since,
        until=until,
        interval_s=interval_s,
        queries=queries,
        annotations=await _annotations(session, job, since),
    )


def _point(interval: series.Interval, until: datetime) -> SeriesPoint:
    tally = interval.tally
    # The newest interval is not over yet. A driver's clock may be ahead of the database's.
    seconds = max(1.0, min(interval.length, until - interval.start).total_seconds())
    return SeriesPoint(
        at=interval.start,
        epochs=tally.epochs,
        replayed=tally.replayed,
        records_in_per_s=tally.records_in / seconds,
        records_out_per_s=tally.records_out / seconds,
        epoch_ms_p50=series.percentile(tally.durations, 0.5),
        epoch_ms_p99=series.percentile(tally.durations, 0.99),
        latency_ms_p50=series.percentile(tally.latencies, 0.5),
        latency_ms_p99=series.percentile(tally.latencies, 0.99),
        lag=tally.lag,
    )


async def _annotations(session: AsyncSession, job: str, since: datetime) -> list[Annotation]:
    recoveries = select(RecoveryRow).where(
        RecoveryRow.job == job, or_(RecoveryRow.ended_at.is_(None), RecoveryRow.ended_at >= since)
    )
    versions = select(JobVersionRow).where(JobVersionRow.job == job, JobVersionRow.created_at >= since)
    savepoints = select(SavepointRow).where(SavepointRow.job == job, SavepointRow.completed_at >= since)
    newest = [
        *(
            Annotation(kind="recovery", at=row.started_at, until=row.ended_at, text=row.body.cause)
            for row in await session.scalars(recoveries.order_by(RecoveryRow.started_at.desc()).limit(_ANNOTATIONS))
        ),
        *(
            Annotation(kind="version", at=row.created_at, text=f"version {row.version}")
            for row in await session.scalars(versions.order_by(JobVersionRow.version.desc()).limit(_ANNOTATIONS))
        ),
        *(
            Annotation(kind="savepoint", at=row.completed_at or row.created_at, text=row.name)
            for row in await session.scalars(savepoints.order_by(SavepointRow.completed_at.desc()).limit(_ANNOTATIONS))
        ),
    ]
    return sorted(newest, key=lambda annotation: annotation.at)[-_ANNOTATIONS:]
