"""Computes REST resources from the stored epochs of a job: checkpoints, metrics, offsets, causal log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.checkpoints import (
    CheckpointCounts,
    Checkpoints,
    CheckpointSummary,
    EpochCheckpoint,
    LatestCheckpoints,
    Savepoint,
)
from clonos.resources.jobs import CausalLog, Metrics, Offsets, QueryMetrics
from clonos_api.store import counters, views
from clonos_api.store.db.paging import FIRST, Page, Window, by_time
from clonos_api.store.db.rows import require_row
from clonos_api.store.recent_epochs import recent_epochs
from clonos_api.store.tables import EpochRow, JobRow, SavepointRow

# Number of epochs whose files Spark retains (`clonos.log.control.RETAINED_EPOCHS`).
_RETAINED: Final = 100
_SUMMED_UP: Final = 100
_MINUTE: Final = timedelta(minutes=1)


async def page(session: AsyncSession, job: str, window: Window = FIRST) -> Page[EpochCheckpoint]:
    """One page of a job's checkpoints (finished epochs), newest first."""
    rows = select(EpochRow).where(EpochRow.job == job)
    epochs = await by_time(session, rows, EpochRow.completed_at, EpochRow.query, window)
    newest = await _newest(session, job)
    return Page([_resource(row, newest) for row in epochs.rows], epochs.next)


async def get(session: AsyncSession, job: str, epoch: int, query: str | None = None) -> EpochCheckpoint:
    """Return the checkpoint of one epoch, of the newest lineage that has it; without `query`, of the query that
    finished it last.
    """
    rows = select(EpochRow).where(EpochRow.job == job, EpochRow.epoch == epoch)
    if query is not None:
        rows = rows.where(EpochRow.query == query)
    rows = rows.order_by(EpochRow.lineage.desc(), EpochRow.completed_at.desc()).limit(1)
    row = require_row((await session.scalars(rows)).first(), f"epoch {epoch} of this job")
    return _resource(row, await _newest(session, job))


async def checkpoints(session: AsyncSession, job: str, *, limit: int = 100) -> Checkpoints:
    """Return a job's checkpoints (finished epochs): numbers by outcome, statistics of the durations and published
    records, the newest epoch, savepoint and replay, and the newest `limit` epochs.
    """
    sums = await counters.of_job(session, job)
    history = (await page(session, job, Window(max(limit, _SUMMED_UP)))).rows
    queries = {epoch.query for epoch in history}
    restored = next((epoch for epoch in history if epoch.trigger == "REPLAY"), None)
    savepoint = (
        await session.scalars(
            select(SavepointRow)
            .where(SavepointRow.job == job, SavepointRow.state == "COMPLETED")
            .order_by(SavepointRow.completed_at.desc())
            .limit(1)
        )
    ).first()
    retained = select(func.count()).select_from(EpochRow).where(EpochRow.job == job)
    return Checkpoints(
        counts=CheckpointCounts(
            completed=sums.get("epochs", 0),
            failed=sums.get("epochs_failed", 0),
            restored=sums.get("epochs_replayed", 0),
            retained=min((await session.execute(retained)).scalar_one(), _RETAINED * max(1, len(queries))),
        ),
        summary=_summary(history[:_SUMMED_UP]),
        latest=LatestCheckpoints(
            completed=history[0] if history else None,
            savepoint=views.resource(Savepoint, savepoint) if savepoint else None,
            restored=restored,
        ),
        history=history[:limit],
    )


async def metrics(session: AsyncSession, job: JobRow) -> Metrics:
    """Return the metrics of a job: totals since its creation, rates of the last 10 s, epoch durations of the last
    minute.
    """
    recent = await recent_epochs(session, job, _MINUTE)
    queries = {}
    for name, figures in job.figures.queries.items():
        durations = sorted(epoch.duration_ms for epoch in recent[name].epochs)
        queries[name] = QueryMetrics.model_validate(figures, from_attributes=True).model_copy(
            update={
                "records_in_per_s": recent[name].per_second(lambda epoch: epoch.records_in),
                "records_out_per_s": recent[name].per_second(lambda epoch: epoch.records_out),
                "epoch_ms_p50": _share(durations, 0.5),
                "epoch_ms_p99": _share(durations, 0.99),
            }
        )
    return Metrics.model_validate(job.figures, from_attributes=True).model_copy(update={"queries": queries})


async def offsets(session: AsyncSession, job: JobRow) -> list[Offsets]:
    """Return the source offsets of each query of a job after its newest epoch, with the query's lag."""
    newest_offsets = []
    for name, figures in sorted(job.figures.queries.items()):
        rows = select(EpochRow).where(EpochRow.job == job.id, EpochRow.query == name)
        row = (await session.scalars(rows.order_by(EpochRow.completed_at.desc()).limit(1))).first()
        if row is not None:
            lags = {"lag": figures.lag, "partition_lag": figures.partition_lag}
            newest_offsets.append(Offsets(query=name, epoch=row.epoch, offsets=row.body.offsets, **lags))
    return newest_offsets


async def causal_log(session: AsyncSession, job: JobRow) -> CausalLog:
    """Return the overview of a job's causal log: numbers of determinants, their bytes, and truncations."""
    sums = await counters.of_job(session, job.id)
    truncated_at = sums.get("truncated_at")
    return CausalLog(
        topic=f"clonos.{job.name}.log",
        determinants=sums.get("recorded_determinants", 0),
        bytes=sums.get("recorded_bytes", 0),
        replayed=sums.get("replayed_determinants", 0),
        truncations=sums.get("truncations", 0),
        truncated_at=datetime.fromtimestamp(truncated_at, UTC) if truncated_at else None,
    )


async def _newest(session: AsyncSession, job: str) -> dict[str, tuple[int, int]]:
    """Query → its newest (lineage, epoch)."""
    rows = select(EpochRow.query, EpochRow.lineage, func.max(EpochRow.epoch)).where(EpochRow.job == job)
    newest: dict[str, tuple[int, int]] = {}
    for query, lineage, epoch in await session.execute(rows.group_by(EpochRow.query, EpochRow.lineage)):
        newest[query] = max(newest.get(query, (-1, -1)), (lineage, epoch))
    return newest


def _resource(row: EpochRow, newest: dict[str, tuple[int, int]]) -> EpochCheckpoint:
    lineage, epoch = newest[row.query]
    retained = row.lineage == lineage and row.epoch > epoch - _RETAINED
    return row.body.model_copy(update={"retained": retained})


def _summary(history: list[EpochCheckpoint]) -> CheckpointSummary:
    if not history:
        return CheckpointSummary()
    durations = sorted(epoch.duration_ms for epoch in history)
    records = [epoch.records_out for epoch in history]
    ms: dict[Literal["min", "avg", "p50", "p99", "max"], float] = {
        "min": durations[0],
        "avg": sum(durations) / len(durations),
        "p50": _share(durations, 0.5) or 0.0,
        "p99": _share(durations, 0.99) or 0.0,
        "max": durations[-1],
    }
    out: dict[Literal["min", "avg", "max"], float] = {
        "min": min(records),
        "avg": sum(records) / len(records),
        "max": max(records),
    }
    return CheckpointSummary(duration_ms=ms, records_out=out)


def _share(durations: list[float], share: float) -> float | None:
    return durations[min(len(durations) - 1, int(share * len(durations)))] if durations else None
