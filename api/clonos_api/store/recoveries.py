"""Rows of recoveries. Each lasts from a failure until all queries of the job have returned.

A query has returned with its first epoch after the claim, or when it is ready to read and has no unread records.
The reconciler begins a recovery when it detects a failure, such as a lost host; ingestion begins it when a driver
reports the failure. The first of both inserts the row. A job has at most one open recovery: if the new generation fails
too, the next recovery supersedes it. Each recovery ends with an outcome (`Recovery.outcome`). Events:
``job.recovery.began``, ``job.recovery.ended``.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.jobs import Failure, Phase, QueryReturn
from clonos.resources.recovery_descriptions import PLANNED
from clonos_api.store import events
from clonos_api.store.columns import JobFigures, Outcome, QueryFigures, RecoveryBody
from clonos_api.store.db.clock import now
from clonos_api.store.db.paging import FIRST, Page, Window, by_time
from clonos_api.store.db.rows import new_id, require_row
from clonos_api.store.ingest import EpochDone, NoInput
from clonos_api.store.tables import EpochRow, JobRow, RecoveryRow

# Marks of a claim, and the recovery phase that each mark ends.
_CONTROL_PLANE = frozenset({"detect", "decide", "finish"})
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
    await lock_job(session, job)  # several writers may detect the failure at once
    known, superseded = await open_of_job(session, job), None
    if known is not None and failed_generation >= (known.body.generation or failed_generation + 1):
        await end(session, known, "SUPERSEDED", at)
        known, superseded = None, known
    if known is not None:
        if failure is not None and known.body.failure is None:
            _set(known, failure=failure)
        return known
    at = at if detected_at is None else min(at, detected_at)
    row = RecoveryRow(
        id=new_id(),
        job=job,
        started_at=at,
        body=RecoveryBody(
            cause,
            failed_generation,
            from_host,
            failure,
            phases=[] if detected_at is None else [_phase("detect", at, detected_at)],
            silent_since=None if superseded is None else _silence(superseded),
        ),
    )
    session.add(row)
    await session.flush()
    data = {"recovery": row.id, "cause": cause, "failed_generation": failed_generation}
    events.append(session, "job.recovery.began", job=job, data=data)
    return row


async def explain(
    session: AsyncSession, job: str, failure: Failure | None, *, generation: int | None = None, **more: str
) -> bool:
    """Add `failure` to a job's newest recovery, if it has none, and set other fields of `RecoveryBody` (`more`).

    With `generation`, only if that is the recovery's new generation. Returns whether the job has such a recovery.
    """
    row = await _newest(session, job)
    if row is None or (generation is not None and row.body.generation != generation):
        return False
    _set(row, failure=row.body.failure or failure, **more)
    await session.flush()
    return True


async def record_alive(session: AsyncSession, job: str, failed_generation: int, at: datetime) -> bool:
    """Record that the driver of a failed generation was alive at the time `at`.

    Returns whether the takeover was false: the job's host counted as lost, and its driver worked before the recovery
    ended.
    """
    row = await _newest(session, job)
    if row is None or row.body.cause != "host-lost" or row.body.failed_generation != failed_generation:
        return False
    if row.body.alive_at is not None or (row.ended_at is not None and at > row.ended_at):
        return False
    _set(row, alive_at=at)
    await session.flush()
    return True


async def record_placement(session: AsyncSession, job: str, host: str, *, standby: str | None = None) -> None:
    """Record the host (name) of the new driver in the recovery in progress, and the standby that takes over, if any."""
    row = await open_of_job(session, job)
    if row is None:
        return
    phases = list(row.body.phases)
    if [phase.name for phase in phases] == ["detect"]:
        # In an upgrade this phase waits for the end of the driver's epoch.
        name = "finish" if row.body.cause == "upgrade" else "decide"
        phases.append(_phase(name, _end(phases[0]), await now(session)))
    _set(row, to_host=host, standby=standby, phases=phases)
    await session.flush()


async def record_claim(session: AsyncSession, job: str, generation: int, host: str) -> None:
    """Record the new generation in the recovery in progress, which continues until all queries return."""
    row = await open_of_job(session, job)
    if row is not None and generation > row.body.failed_generation:
        _set(row, generation=generation, to_host=host)
        await session.flush()


async def record_epoch(
    session: AsyncSession, job: str, done: EpochDone, before: datetime | None, waiting: Collection[str]
) -> RecoveryRow | None:
    """Record the first epoch of a query after a claim in the recovery in progress.

    Args:
        session: The transaction.
        job: Id of the job.
        done: The epoch.
        before: End of the query's previous epoch; None: unknown.
        waiting: The queries of the job that have not returned since the claim.

    Returns:
        The recovery, if the epoch ends it.
    """
    row = await open_of_job(session, job)
    if row is None:
        await _record_first_record(session, job, done)
        return None
    if done.checkpoint.generation < _new_generation(row):
        return None
    at = max(done.at, row.started_at)
    since = _silence(row)
    # In a planned move, and in a false takeover, the old driver still commits epochs.
    gap = at - min(at, max(before or since, since))
    _set(
        row,
        skipped_lanes=row.body.skipped_lanes + done.figures["skipped_lanes"],
        replayed_determinants=row.body.replayed_determinants + done.figures["replayed_determinants"],
        replayed_records=row.body.replayed_records + (done.figures["records_in"] if done.replay else 0),
        generation=done.checkpoint.generation,
        phases=_until(done, row),
    )
    gap_ms = _ms(gap.total_seconds())
    return await _record_return(session, row, done.checkpoint.query, at, gap_ms, waiting)


async def _record_first_record(session: AsyncSession, job: str, done: EpochDone) -> None:
    """Record when input came after a recovery that has ended because there was none."""
    row = await _newest(session, job)
    if row is None or row.body.outcome != "IDLE" or row.body.generation != done.checkpoint.generation:
        return
    if row.body.first_record_at is None:
        _set(row, first_record_at=done.at)
        await session.flush()


async def record_no_input(
    session: AsyncSession, job: str, report: NoInput, before: datetime | None, waiting: Collection[str]
) -> RecoveryRow | None:
    """Record in the recovery in progress that a query is ready to read, and has no unread records, after a claim.

    `before` and `waiting` are as in `record_epoch`. Returns the recovery, if the report ends it.
    """
    row = await open_of_job(session, job)
    if row is None or report.generation < _new_generation(row):
        return None
    at, since = max(report.at, row.started_at), _silence(row)
    if row.body.cause in PLANNED:
        since = max(since, report.marks.get("claiming", since))  # the old driver was ready to read until then
    gap = at - min(at, max(before or since, since))
    names = {phase.name for phase in row.body.phases}
    if "commit" not in names:  # otherwise another query has published
        ends = [(phase.name, _end(phase)) for phase in row.body.phases if phase.name in _CONTROL_PLANE]
        marks = [(name, report.marks[mark]) for mark, name in _PHASES if mark in report.marks]
        ends += [(_name(name, row), mark) for name, mark in [*marks, ("ready", at)] if mark >= row.started_at]
        _set(row, phases=_consecutive(row.started_at, ends))
    _set(row, generation=report.generation)
    return await _record_return(session, row, report.query, at, _ms(gap.total_seconds()), waiting, idle=True)


async def _record_return(
    session: AsyncSession,
    row: RecoveryRow,
    query: str,
    at: datetime,
    gap_ms: float,
    waiting: Collection[str],
    *,
    idle: bool = False,
) -> RecoveryRow | None:
    report = QueryReturn(at=at, downtime_ms=gap_ms, idle=idle)
    _set(row, returned={query: report, **row.body.returned}, waits=sorted(waiting))
    if waiting:
        await session.flush()
        return None
    await end(session, row, "IDLE", at)
    return row


def silent_since(row: RecoveryRow, figures: JobFigures) -> datetime:
    """Since when a job in recovery has no output: the beginning of the first of several failures in succession.

    In a planned move, and in a false takeover, the old driver still publishes: the last output of those of its queries
    that have not returned, as the job's `figures` show it.
    """
    begin = _silence(row)
    outputs = [query.at for query in waiting_queries(row, figures).values() if query.at is not None]
    return max(begin, min(outputs, default=begin))


def waiting_queries(row: RecoveryRow, figures: JobFigures) -> dict[str, QueryFigures]:
    """Return the queries that have published and have not returned in a recovery: name → figures."""
    return {name: query for name, query in figures.queries.items() if query.at and name not in row.body.returned}


def _silence(row: RecoveryRow) -> datetime:
    return row.body.silent_since or row.started_at


def _new_generation(row: RecoveryRow) -> int:
    """Return the generation that ends a recovery; the lowest one that can, before a driver has claimed the causal
    log.
    """
    return row.body.generation or row.body.failed_generation + 1


def _set(row: RecoveryRow, **fields: Any) -> None:
    """Set fields of a recovery's body."""
    row.body = msgspec.structs.replace(row.body, **fields)


async def _newest(session: AsyncSession, job: str) -> RecoveryRow | None:
    query = select(RecoveryRow).where(RecoveryRow.job == job).order_by(RecoveryRow.started_at.desc()).limit(1)
    return (await session.scalars(query)).first()


async def abandon(session: AsyncSession, job: str) -> None:
    """End the recovery in progress of a job that has stopped, if any, with the outcome ABANDONED."""
    row = await open_of_job(session, job)
    if row is not None:
        await end(session, row, "ABANDONED")


async def lock_job(session: AsyncSession, job: str) -> None:
    """Lock a job's row until the end of the transaction: it orders the writers of the job's recoveries."""
    await session.execute(select(JobRow.id).where(JobRow.id == job).with_for_update(key_share=True))


async def end(session: AsyncSession, row: RecoveryRow, outcome: Outcome, at: datetime | None = None) -> None:
    """End a recovery. If queries have published since it began, its outcome is COMPLETED, unless it is superseded.

    Without, and if all are ready to read, the time until then is the downtime.
    """
    row.ended_at = max(at or await now(session), row.started_at)
    timed = [query for query in row.body.returned.values() if query.downtime_ms is not None]
    published = [query for query in timed if not query.idle]
    if outcome != "SUPERSEDED" and (published or (timed and outcome == "IDLE")):
        outcome = "COMPLETED" if published else outcome
        timed = published or timed
        row.ended_at = max(query.at for query in timed)
        phases = list(row.body.phases)
        committed = max((_end(phase) for phase in phases), default=row.ended_at)
        if row.ended_at - committed >= timedelta(milliseconds=1):
            phases.append(_phase("others", committed, row.ended_at))
        _set(row, phases=phases, downtime_ms=max(query.downtime_ms or 0.0 for query in timed))
    _set(row, outcome=outcome)
    await session.flush()
    _append_ended(session, row)


async def newest_since(session: AsyncSession, row: RecoveryRow) -> int:
    """Return the generation of the newest epoch that finished after the failure of a recovery; 0 if there is none."""
    query = select(EpochRow.body).where(EpochRow.job == row.job, EpochRow.completed_at > row.started_at)
    newest = (await session.scalars(query.order_by(EpochRow.completed_at.desc()).limit(1))).first()
    return 0 if newest is None else newest.generation


async def open_since(session: AsyncSession, moment: datetime) -> set[str]:
    """Return the jobs with a recovery that began after `moment` and has not ended."""
    query = select(RecoveryRow.job).where(RecoveryRow.ended_at.is_(None), RecoveryRow.started_at > moment)
    return set(await session.scalars(query))


async def open_of_job(session: AsyncSession, job: str) -> RecoveryRow | None:
    """Return the row of a job's recovery in progress; None if there is none."""
    query = select(RecoveryRow).where(RecoveryRow.job == job, RecoveryRow.ended_at.is_(None))
    return (await session.scalars(query.order_by(RecoveryRow.started_at).limit(1))).first()


def newest_of_jobs(*which: ColumnElement[bool]) -> Select[RecoveryRow]:
    """Select the newest recovery of each job, of those that meet the conditions `which`.

    A job whose two newest recoveries have the same start has two rows; the last row is the newer one.
    """
    newest = select(RecoveryRow.job, func.max(RecoveryRow.started_at).label("at")).where(*which)
    of_job = newest.group_by(RecoveryRow.job).subquery()
    same = (RecoveryRow.job == of_job.c.job) & (RecoveryRow.started_at == of_job.c.at)
    return select(RecoveryRow).join(of_job, same).order_by(RecoveryRow.id)


async def get(session: AsyncSession, job: str, recovery: str) -> RecoveryRow:
    """Return the row of a recovery of a job, by its id."""
    row = await session.get(RecoveryRow, recovery)
    return require_row(row if row is not None and row.job == job else None, f"recovery {recovery} of this job")


async def page(session: AsyncSession, job: str | None, window: Window = FIRST) -> Page[RecoveryRow]:
    """One page of the recoveries of a job, or of all jobs, newest first."""
    query = select(RecoveryRow) if job is None else select(RecoveryRow).where(RecoveryRow.job == job)
    return await by_time(session, query, RecoveryRow.started_at, RecoveryRow.id, window)


def _until(done: EpochDone, row: RecoveryRow) -> list[Phase]:
    """Return the phases of a recovery up to an epoch, if that is the first one after the claim."""
    if done.marks is None:
        return row.body.phases
    ends = [(phase.name, _end(phase)) for phase in row.body.phases]
    ends += [(_name(name, row), at) for name, at in _ends(done) if at >= row.started_at]
    return _consecutive(row.started_at, ends)


def _ends(done: EpochDone) -> list[tuple[str, datetime]]:
    """Return the ends of the phases of a driver until its first epoch, by the clock of its host."""
    marks = done.marks or {}
    ends = [(name, marks[mark]) for mark, name in _PHASES if mark in marks]
    commit_ms = sum(span.duration_ms for span in done.checkpoint.spans if span.name == "commit")
    ends.append(("replay" if done.replay else "epoch", done.at - timedelta(milliseconds=commit_ms)))
    return [*ends, ("commit", done.at)]


def _name(name: str, row: RecoveryRow) -> str:
    return "wake" if name == "start" and row.body.standby else name


def _consecutive(began: datetime, ends: list[tuple[str, datetime]]) -> list[Phase]:
    """Consecutive phases from `began` without gaps, even if the clocks of two hosts differ."""
    phases = []
    for at, (name, end) in enumerate(ends):
        end = max(began, min([end, *(later for _, later in ends[at + 1 :])]))
        phases.append(_phase(name, began, end))
        began = end
    return phases


def _end(phase: Phase) -> datetime:
    return phase.started_at + timedelta(milliseconds=phase.duration_ms)


def _append_ended(session: AsyncSession, row: RecoveryRow) -> None:
    """Append the event of a recovery's end."""
    body = row.body
    summary = {"generation": body.generation, "downtime_ms": body.downtime_ms, "outcome": body.outcome}
    events.append(session, "job.recovery.ended", job=row.job, data={"recovery": row.id, **summary})


def _phase(name: str, began: datetime, ended: datetime) -> Phase:
    duration = _ms(max(0.0, (ended - began).total_seconds()))
    return Phase(name=name, started_at=began, duration_ms=duration)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
