"""Recoveries: from one failure to the first epoch after it.

The reconciler begins one when it knows first (a host is lost), ingestion when a driver tells of it; the first wins,
and the other adds nothing. A job has at most one open recovery: if the generation that it brought fails too, the next
one takes its place. Each ends, and says how (`Recovery.outcome`). Events: ``job.recovery.began``,
``job.recovery.ended``.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.jobs import Failure, Phase
from clonos_api.store import events
from clonos_api.store.clock import now
from clonos_api.store.ingest import EpochDone
from clonos_api.store.paging import DEFAULT, Page, by_time
from clonos_api.store.rows import found, new_id
from clonos_api.store.tables import EpochRow, JobRow, RecoveryRow

PLANNED = frozenset({"move", "upgrade"})
Outcome = Literal["finished", "superseded", "overtaken", "idle", "abandoned"]
# Parts of a claim, and the phase of the recovery that ends with each.
_PHASES = (("claiming", "start"), ("claimed", "claim"), ("running", "restore"))


async def begin(
    session: AsyncSession,
    job: str,
    *,
    cause: str,
    failed_generation: int,
    from_agent: str,
    at: datetime,
    failure: Failure | None = None,
    detected_at: datetime | None = None,
) -> RecoveryRow:
    """A generation failed.

    Args:
        session: A transaction.
        job: Id of the job.
        cause: ``restart``, ``crash``, ``host-lost``, ``move`` or ``upgrade``.
        failed_generation: That one.
        from_agent: Name of the agent that had it.
        at: When, as far as is known.
        failure: Why, if it was told.
        detected_at: When the control plane noticed.
    """
    # Several writers may notice at once: the job's row orders them.
    await session.execute(select(JobRow.id).where(JobRow.id == job).with_for_update(key_share=True))
    known = await opened(session, job)
    if known is not None and failed_generation >= (known.body.get("generation") or failed_generation + 1):
        await end(session, known, "superseded", at)
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
            "from_agent": from_agent,
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
    """Why there was the newest recovery of a job, if it does not say so yet, and what else is known of it now.

    Args:
        session: A transaction.
        job: Id of the job.
        failure: Why.
        generation: Only if it brought that one.
        more: Fields of its body.

    Returns:
        Whether there is such a recovery.
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


async def placed(session: AsyncSession, job: str, agent: str, *, standby: str | None = None) -> None:
    """The job whose recovery is open goes on on this agent (its name): by a new driver, or by a standby."""
    row = await opened(session, job)
    if row is None:
        return
    phases = list(row.body["phases"])
    if [one["name"] for one in phases] == ["detect"]:
        # An upgrade waits here until the driver has finished its epoch.
        name = "finish" if row.body["cause"] == "upgrade" else "decide"
        phases.append(_phase(name, _end(phases[0]), await now(session)))
    row.body = {**row.body, "to_agent": agent, "standby": standby, "phases": phases}
    await session.flush()


async def claimed(session: AsyncSession, job: str, generation: int, agent: str) -> None:
    """A new generation took over; the recovery lasts until its first epoch."""
    row = await opened(session, job)
    if row is not None and generation > row.body["failed_generation"]:
        row.body = {**row.body, "generation": generation, "to_agent": agent}
        await session.flush()


async def finished(session: AsyncSession, job: str, done: EpochDone, before: datetime | None) -> RecoveryRow | None:
    """The first epoch after a claim: the recovery that was open, if any, is over.

    Args:
        session: A transaction.
        job: Id of the job.
        done: The epoch.
        before: When the job's newest epoch before it ended.
    """
    row = await opened(session, job)
    if row is None or done.checkpoint.generation < (row.body.get("generation") or row.body["failed_generation"] + 1):
        return None
    ends = [(one["name"], _end(one)) for one in row.body["phases"]]
    ends += [(_name(name, row), at) for name, at in _ends(done) if at >= row.started_at]
    # In a planned move the driver goes on after its beginning.
    last = before or row.started_at
    gap = done.at - (last if row.body["cause"] in PLANNED else min(last, row.started_at))
    row.ended_at = max(done.at, row.started_at)
    row.body = {
        **row.body,
        "outcome": "finished",
        "generation": done.checkpoint.generation,
        "phases": _consecutive(row.started_at, ends),
        "gap_ms": _ms(gap.total_seconds()),
        "replayed_records": done.figures["read"] if done.replay else 0,
        "skipped_lanes": done.figures["skipped_lanes"],
        "replayed_determinants": done.figures["replayed"],
    }
    await session.flush()
    _tell(session, row)
    return row


async def abandon(session: AsyncSession, job: str) -> None:
    """The job has ended: its open recovery, if any, will see no epoch."""
    row = await opened(session, job)
    if row is not None:
        await end(session, row, "abandoned")


async def end(session: AsyncSession, row: RecoveryRow, outcome: Outcome, at: datetime | None = None) -> None:
    """A recovery ends without an epoch of its own."""
    row.ended_at = max(at or await now(session), row.started_at)
    row.body = {**row.body, "outcome": outcome}
    await session.flush()
    _tell(session, row)


async def newest_since(session: AsyncSession, row: RecoveryRow) -> int:
    """The generation of the newest epoch that was finished after the failure; 0: there is none."""
    query = select(EpochRow.body).where(EpochRow.job == row.job, EpochRow.completed_at > row.started_at)
    newest = (await session.scalars(query.order_by(EpochRow.completed_at.desc()).limit(1))).first()
    return 0 if newest is None else int(newest["generation"])


async def last_epoch_at(session: AsyncSession, job: str) -> datetime | None:
    """When the newest epoch of a job ended."""
    moment: datetime | None = (
        await session.execute(select(func.max(EpochRow.completed_at)).where(EpochRow.job == job))
    ).scalar()
    return moment


async def opened(session: AsyncSession, job: str) -> RecoveryRow | None:
    """The recovery that lasts, if one does."""
    query = select(RecoveryRow).where(RecoveryRow.job == job, RecoveryRow.ended_at.is_(None))
    return (await session.scalars(query.order_by(RecoveryRow.started_at).limit(1))).first()


async def get(session: AsyncSession, job: str, recovery: str) -> RecoveryRow:
    """A job's recovery.

    Raises:
        NotFound: It has none with this id.
    """
    row = await session.get(RecoveryRow, recovery)
    return found(row if row is not None and row.job == job else None, f"recovery {recovery} of this job")


async def page(
    session: AsyncSession, job: str, *, limit: int = DEFAULT, starting_after: str | None = None
) -> Page[RecoveryRow]:
    """A job's recoveries, newest first; the fields of a `clonos.resources.jobs.Recovery` are the columns and `body`."""
    query = select(RecoveryRow).where(RecoveryRow.job == job)
    return await by_time(
        session, query, RecoveryRow.started_at, RecoveryRow.id, limit=limit, starting_after=starting_after
    )


def _ends(done: EpochDone) -> list[tuple[str, datetime]]:
    """What a driver went through until its first epoch, by the clock of its host."""
    marks = done.marks or {}
    ends = [(name, marks[mark]) for mark, name in _PHASES if mark in marks]
    commit_ms = sum(one.duration_ms for one in done.checkpoint.spans if one.name == "commit")
    ends.append(("replay" if done.replay else "epoch", done.at - timedelta(milliseconds=commit_ms)))
    return [*ends, ("commit", done.at)]


def _name(name: str, row: RecoveryRow) -> str:
    return "wake" if name == "start" and row.body.get("standby") else name


def _consecutive(began: datetime, ends: list[tuple[str, datetime]]) -> list[dict[str, Any]]:
    """Phases that follow each other from `began` on and leave no time out, whatever the clocks of two hosts say."""
    phases = []
    for at, (name, end) in enumerate(ends):
        end = max(began, min([end, *(later for _, later in ends[at + 1 :])]))
        phases.append(_phase(name, began, end))
        began = end
    return phases


def _end(phase: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(phase["started_at"]) + timedelta(milliseconds=phase["duration_ms"])


def _tell(session: AsyncSession, row: RecoveryRow) -> None:
    told = {name: row.body.get(name) for name in ("generation", "gap_ms", "outcome")}
    events.append(session, "job.recovery.ended", job=row.job, data={"recovery": row.id, **told})


def _phase(name: str, began: datetime, ended: datetime) -> dict[str, Any]:
    duration = _ms(max(0.0, (ended - began).total_seconds()))
    return Phase(name=name, started_at=began, duration_ms=duration).model_dump(mode="json")


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
