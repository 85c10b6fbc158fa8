"""Rows of recoveries. Each lasts from a failure to the first epoch after it.

The reconciler begins a recovery when it detects a failure, such as a lost host; ingestion begins it when a driver
reports the failure. The first of both inserts the row. A job has at most one open recovery: if the new generation fails
too, the next recovery supersedes it. Each recovery ends with an outcome (`Recovery.outcome`). Events:
``job.recovery.began``, ``job.recovery.ended``.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.jobs import Failure, Phase
from clonos_api.store import events
from clonos_api.store.db.clock import now
from clonos_api.store.db.paging import FIRST, Page, Window, by_time
from clonos_api.store.db.rows import new_id, require_row
from clonos_api.store.ingest import EpochDone
from clonos_api.store.tables import EpochRow, JobRow, RecoveryRow

Outcome = Literal["COMPLETED", "SUPERSEDED", "OVERTAKEN", "IDLE", "ABANDONED"]
# Marks of a claim, and the recovery phase that each mark ends.
_PHASES = (("claiming", "start"), ("claimed", "claim"), ("running", "restore"))


async def begin(
    session: AsyncSession,
    job: str,
    *,
    cause: str,
    failed_generation: int,
    from_host: str,
    at: datetime,
    failure: Failure | None = None,
    detected_at: datetime | None = None,
) -> RecoveryRow:
    """Begin the recovery of a failed generation, or return the recovery in progress.

    `cause` is ``crash``, ``host-lost``, … (`Recovery.cause`). `at` is the time of the failure, as far as it can be
    determined, `detected_at` when the control plane noticed it. `from_host` is the name of the failed driver's host.
    """
    # Several writers may detect the failure at once: the lock of the job's row orders them.
    await session.execute(select(JobRow.id).where(JobRow.id == job).with_for_update(key_share=True))
    known = await open_of_job(session, job)
    if known is not None and failed_generation >= (known.body.get("generation") or failed_generation + 1):
        await end(session, known, "SUPERSEDED", at)
        known = None
    if known is not None:
        if failure is not None and known.body.get("failure") is None:
            known.body = {**known.body, "failure": failure.model_dump(mode="json")}
        return known
    at = at if detected_at is None else min(at, detected_at)
    detect = [] if detected_at is None else [_phase("detect", at, detected_at)]
    row = RecoveryRow(
        id=new_id(),
        job=job,
        started_at=at,
        body={
            "cause": cause,
            "failure": failure.model_dump(mode="json") if failure else None,
            "failed_generation": failed_generation,
            "from_host": from_host,
            "phases": detect,
        },
    )
    session.add(row)
    await session.flush()
    data = {"recovery": row.id, "cause": cause, "failed_generation": failed_generation}
    events.append(session, "job.recovery.began", job=job, data=data)
    return row


async def explain(
    session: AsyncSession, job: str, failure: Failure | None, *, generation: int | None = None, **more: str
) -> bool:
    """Add `failure` to a job's newest recovery, if it has none, and set other fields of `Recovery` (`more`).

    With `generation`, only if that is the recovery's new generation. Returns whether the job has such a recovery.
    """
    query = select(RecoveryRow).where(RecoveryRow.job == job).order_by(RecoveryRow.started_at.desc()).limit(1)
    row = (await session.scalars(query)).first()
    if row is None or (generation is not None and row.body.get("generation") != generation):
        return False
    if failure is not None and row.body.get("failure") is None:
        row.body = {**row.body, "failure": failure.model_dump(mode="json")}
    row.body = {**row.body, **more}
    await session.flush()
    return True


async def record_alive(session: AsyncSession, job: str, failed_generation: int, at: datetime) -> bool:
    """Record that the driver of a failed generation was alive at the time `at`.

    Returns whether the takeover was false: the job's host counted as lost, and its driver worked before the recovery
    ended.
    """
    query = select(RecoveryRow).where(RecoveryRow.job == job).order_by(RecoveryRow.started_at.desc()).limit(1)
    row = (await session.scalars(query)).first()
    if row is None or row.body["cause"] != "host-lost" or row.body["failed_generation"] != failed_generation:
        return False
    if row.body.get("alive_at") is not None or (row.ended_at is not None and at > row.ended_at):
        return False
    row.body = {**row.body, "alive_at": at.isoformat()}
    await session.flush()
    return True


async def record_placement(session: AsyncSession, job: str, host: str, *, standby: str | None = None) -> None:
    """Record the host (name) of the new driver in the recovery in progress, and the standby that takes over, if any."""
    row = await open_of_job(session, job)
    if row is None:
        return
    phases = list(row.body["phases"])
    if [phase["name"] for phase in phases] == ["detect"]:
        # In an upgrade this phase waits for the end of the driver's epoch.
        name = "finish" if row.body["cause"] == "upgrade" else "decide"
        phases.append(_phase(name, _end(phases[0]), await now(session)))
    row.body = {**row.body, "to_host": host, "standby": standby, "phases": phases}
    await session.flush()


async def record_claim(session: AsyncSession, job: str, generation: int, host: str) -> None:
    """Record the new generation in the recovery in progress, which continues until the first epoch."""
    row = await open_of_job(session, job)
    if row is not None and generation > row.body["failed_generation"]:
        row.body = {**row.body, "generation": generation, "to_host": host}
        await session.flush()


async def complete(session: AsyncSession, job: str, done: EpochDone, before: datetime | None) -> RecoveryRow | None:
    """Complete the recovery in progress with `done`, the first epoch after a claim.

    `before` is the end of the job's previous epoch. Returns the recovery; None if there is none, or if the epoch is of
    an older generation.
    """
    row = await open_of_job(session, job)
    if row is None or done.checkpoint.generation < (row.body.get("generation") or row.body["failed_generation"] + 1):
        return None
    ends = [(phase["name"], _end(phase)) for phase in row.body["phases"]]
    ends += [(_name(name, row), at) for name, at in _ends(done) if at >= row.started_at]
    row.ended_at = max(done.at, row.started_at)
    # In a planned move, and in a false takeover, the old driver still commits epochs.
    gap = row.ended_at - min(row.ended_at, max(before or row.started_at, row.started_at))
    row.body = {
        **row.body,
        "outcome": "COMPLETED",
        "generation": done.checkpoint.generation,
        "phases": _consecutive(row.started_at, ends),
        "downtime_ms": _ms(gap.total_seconds()),
        "replayed_records": done.figures["records_in"] if done.replay else 0,
        "skipped_lanes": done.figures["skipped_lanes"],
        "replayed_determinants": done.figures["replayed_determinants"],
    }
    await session.flush()
    _append_ended(session, row)
    return row


async def abandon(session: AsyncSession, job: str) -> None:
    """End the recovery in progress of a job that has stopped, if any, with the outcome ABANDONED."""
    row = await open_of_job(session, job)
    if row is not None:
        await end(session, row, "ABANDONED")


async def end(session: AsyncSession, row: RecoveryRow, outcome: Outcome, at: datetime | None = None) -> None:
    """End a recovery with an outcome other than COMPLETED: no epoch completes it."""
    row.ended_at = max(at or await now(session), row.started_at)
    row.body = {**row.body, "outcome": outcome}
    await session.flush()
    _append_ended(session, row)


async def newest_since(session: AsyncSession, row: RecoveryRow) -> int:
    """The generation of the newest epoch that finished after the failure of a recovery; 0 if there is none."""
    query = select(EpochRow.body).where(EpochRow.job == row.job, EpochRow.completed_at > row.started_at)
    newest = (await session.scalars(query.order_by(EpochRow.completed_at.desc()).limit(1))).first()
    return 0 if newest is None else int(newest["generation"])


async def last_epoch_at(session: AsyncSession, job: str) -> datetime | None:
    """End of a job's newest epoch; None if there is none."""
    moment: datetime | None = (
        await session.execute(select(func.max(EpochRow.completed_at)).where(EpochRow.job == job))
    ).scalar()
    return moment


async def open_of_job(session: AsyncSession, job: str) -> RecoveryRow | None:
    """The row of a job's recovery in progress; None if there is none."""
    query = select(RecoveryRow).where(RecoveryRow.job == job, RecoveryRow.ended_at.is_(None))
    return (await session.scalars(query.order_by(RecoveryRow.started_at).limit(1))).first()


def newest_of_jobs(*which: ColumnElement[bool]) -> Select[RecoveryRow]:
    """Selects the newest recovery of each job, of those that meet the conditions `which`.

    A job whose two newest recoveries have the same start has two rows; the last row is the newer one.
    """
    newest = select(RecoveryRow.job, func.max(RecoveryRow.started_at).label("at")).where(*which)
    of_job = newest.group_by(RecoveryRow.job).subquery()
    same = (RecoveryRow.job == of_job.c.job) & (RecoveryRow.started_at == of_job.c.at)
    return select(RecoveryRow).join(of_job, same).order_by(RecoveryRow.id)


async def get(session: AsyncSession, job: str, recovery: str) -> RecoveryRow:
    """The row of a recovery of a job, by its id."""
    row = await session.get(RecoveryRow, recovery)
    return require_row(row if row is not None and row.job == job else None, f"recovery {recovery} of this job")


async def page(session: AsyncSession, job: str, window: Window = FIRST) -> Page[RecoveryRow]:
    """One page of a job's recoveries, newest first."""
    query = select(RecoveryRow).where(RecoveryRow.job == job)
    return await by_time(session, query, RecoveryRow.started_at, RecoveryRow.id, window)


def _ends(done: EpochDone) -> list[tuple[str, datetime]]:
    """The ends of the phases of a driver until its first epoch, by the clock of its host."""
    marks = done.marks or {}
    ends = [(name, marks[mark]) for mark, name in _PHASES if mark in marks]
    commit_ms = sum(span.duration_ms for span in done.checkpoint.spans if span.name == "commit")
    ends.append(("replay" if done.replay else "epoch", done.at - timedelta(milliseconds=commit_ms)))
    return [*ends, ("commit", done.at)]


def _name(name: str, row: RecoveryRow) -> str:
    return "wake" if name == "start" and row.body.get("standby") else name


def _consecutive(began: datetime, ends: list[tuple[str, datetime]]) -> list[dict[str, Any]]:
    """Consecutive phases from `began` without gaps, even if the clocks of two hosts differ."""
    phases = []
    for at, (name, end) in enumerate(ends):
        end = max(began, min([end, *(later for _, later in ends[at + 1 :])]))
        phases.append(_phase(name, began, end))
        began = end
    return phases


def _end(phase: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(phase["started_at"]) + timedelta(milliseconds=phase["duration_ms"])


def _append_ended(session: AsyncSession, row: RecoveryRow) -> None:
    """End a recovery: an epoch was committed, the job ended, or another failure followed."""
    summary = {name: row.body.get(name) for name in ("generation", "downtime_ms", "outcome")}
    events.append(session, "job.recovery.ended", job=row.job, data={"recovery": row.id, **summary})


def _phase(name: str, began: datetime, ended: datetime) -> dict[str, Any]:
    duration = _ms(max(0.0, (ended - began).total_seconds()))
    return Phase(name=name, started_at=began, duration_ms=duration).model_dump(mode="json")


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
