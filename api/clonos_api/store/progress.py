"""What the ingested epochs of a job add up to: checkpoints, metrics, offsets, the causal log."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.checkpoints import (
    Checkpoint,
    CheckpointCounts,
    Checkpoints,
    CheckpointSummary,
    LatestCheckpoints,
    Savepoint,
)
from clonos.resources.jobs import CausalLog, Metrics, Offsets
from clonos_api.store import counters
from clonos_api.store.clock import now
from clonos_api.store.paging import DEFAULT, Page, by_time
from clonos_api.store.rows import found
from clonos_api.store.tables import EpochRow, JobRow, SavepointRow

# Spark keeps the files of so many epochs (`clonos.log.control.RETAINED_EPOCHS`).
_RETAINED: Final = 100
_SUMMED_UP: Final = 100
_MINUTE: Final = timedelta(minutes=1)
_RATE: Final = timedelta(seconds=10)


async def page(
    session: AsyncSession,
    job: str,
    *,
    query: str | None = None,
    limit: int = DEFAULT,
    starting_after: str | None = None,
) -> Page[Checkpoint]:
    """A job's epochs, newest first."""
    rows = select(EpochRow).where(EpochRow.job == job)
    if query is not None:
        rows = rows.where(EpochRow.query == query)
    found_rows = await by_time(
        session, rows, EpochRow.completed_at, EpochRow.query, limit=limit, starting_after=starting_after
    )
    newest = await _newest(session, job)
    return Page([_resource(row, newest) for row in found_rows.rows], found_rows.next)


async def one(session: AsyncSession, job: str, epoch: int, query: str | None = None) -> Checkpoint:
    """One epoch, of the newest lineage that has it; of the query that finished it last unless one is named.

    Raises:
        NotFound: It is not known (any more).
    """
    rows = select(EpochRow).where(EpochRow.job == job, EpochRow.epoch == epoch)
    if query is not None:
        rows = rows.where(EpochRow.query == query)
    rows = rows.order_by(EpochRow.lineage.desc(), EpochRow.completed_at.desc()).limit(1)
    row = found((await session.scalars(rows)).first(), f"epoch {epoch} of this job")
    return _resource(row, await _newest(session, job))


async def checkpoints(session: AsyncSession, job: str, *, limit: int = 100) -> Checkpoints:
    """Counts, summary, the newest of each kind, history."""
    sums = await counters.of_job(session, job)
    history = (await page(session, job, limit=max(limit, _SUMMED_UP))).rows
    restored = next((one for one in history if one.trigger == "REPLAY"), None)
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
            retained=min((await session.execute(retained)).scalar_one(), _RETAINED * max(1, len(_queries(history)))),
        ),
        summary=_summary(history[:_SUMMED_UP]),
        latest=LatestCheckpoints(
            completed=history[0] if history else None,
            savepoint=Savepoint.model_validate(columns(savepoint)) if savepoint else None,
            restored=restored,
        ),
        history=history[:limit],
    )


async def metrics(session: AsyncSession, job: JobRow) -> Metrics:
    """Sums since the job was created, and the rates of now."""
    moment = await now(session)
    told: dict[str, Any] = {"at": None, "restarts": 0, "queries": {}, **(job.metrics or {})}
    recent: dict[str, list[Checkpoint]] = defaultdict(list)
    rows = select(EpochRow).where(EpochRow.job == job.id, EpochRow.completed_at > moment - _MINUTE)
    for row in await session.scalars(rows):
        recent[row.query].append(Checkpoint.model_validate(row.body))
    queries = {}
    for name, sums in told["queries"].items():
        newest = [one for one in recent[name] if one.completed_at > moment - _RATE]
        durations = sorted(one.duration_ms for one in recent[name])
        queries[name] = {
            **sums,
            "records_in_per_s": sum(one.records_in for one in newest) / _RATE.total_seconds(),
            "records_out_per_s": sum(one.records_out for one in newest) / _RATE.total_seconds(),
            "epoch_ms_p50": _share(durations, 0.5),
            "epoch_ms_p99": _share(durations, 0.99),
        }
    return Metrics.model_validate({**told, "queries": queries})


async def offsets(session: AsyncSession, job: JobRow) -> list[Offsets]:
    """Where the sources of each query are: those of its newest epoch."""
    found_offsets = []
    for name, told in sorted(((job.metrics or {}).get("queries") or {}).items()):
        rows = select(EpochRow).where(EpochRow.job == job.id, EpochRow.query == name)
        row = (await session.scalars(rows.order_by(EpochRow.completed_at.desc()).limit(1))).first()
        if row is not None:
            at = Checkpoint.model_validate(row.body).offsets
            lags = {"lag": told.get("lag", {}), "partition_lag": told.get("partition_lag", {})}
            found_offsets.append(Offsets(query=name, epoch=row.epoch, offsets=at, **lags))
    return found_offsets


async def causal_log(session: AsyncSession, job: JobRow) -> CausalLog:
    """What the drivers told of the job's causal log; `partitions` are left to who can ask Kafka."""
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


def columns(row: Any) -> dict[str, Any]:
    """A row's columns, without its token."""
    return {column.key: getattr(row, column.key) for column in row.__table__.columns if column.key != "token"}


async def _newest(session: AsyncSession, job: str) -> dict[str, tuple[int, int]]:
    """Query → its newest (lineage, epoch)."""
    rows = select(EpochRow.query, EpochRow.lineage, func.max(EpochRow.epoch)).where(EpochRow.job == job)
    newest: dict[str, tuple[int, int]] = {}
    for query, lineage, epoch in await session.execute(rows.group_by(EpochRow.query, EpochRow.lineage)):
        newest[query] = max(newest.get(query, (-1, -1)), (lineage, epoch))
    return newest


def _resource(row: EpochRow, newest: dict[str, tuple[int, int]]) -> Checkpoint:
    lineage, epoch = newest[row.query]
    retained = row.lineage == lineage and row.epoch > epoch - _RETAINED
    return Checkpoint.model_validate({**row.body, "retained": retained})


def _queries(history: list[Checkpoint]) -> set[str]:
    return {one.query for one in history}


def _summary(history: list[Checkpoint]) -> CheckpointSummary:
    if not history:
        return CheckpointSummary()
    durations = sorted(one.duration_ms for one in history)
    records = [one.records_out for one in history]
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
