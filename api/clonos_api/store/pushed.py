"""Locks the rows that a push of an agent changes, of several runs at once, and writes those of the runs.

Jobs are locked before runs, both by id, as in the whole store. The lock of a job serialises concurrent pushes for it.
`epochs` and `logs` write the other tables, each with one statement for the whole push.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import String, bindparam, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.hosts import HostState
from clonos_api.store.columns import IngestState, JobFigures
from clonos_api.store.db.bulk import update_all
from clonos_api.store.tables import HostRow, JobRow, RunRow, table_of


@dataclass(frozen=True)
class LockedJob:
    """The columns of a locked job that ingestion needs."""

    id: str
    generation: int
    restarts: int
    metrics: JobFigures | None  # as in `JobRow`


@dataclass
class LockedRun:
    """The columns of a locked run that ingestion needs; `write` stores the offsets and the state."""

    id: str
    job: str
    state: str
    events_offset: int  # bytes of the event file that are ingested
    ingest_state: IngestState
    log_offset: int  # bytes of the log that are stored
    checkpoint_bytes: dict[str, int] | None  # query → bytes, the agent's newest measurement
    host: str  # name of the run's host
    changed: bool = False  # whether the push has something new of the run


@dataclass(frozen=True)
class Locked:
    """Locked rows, by id: the runs of a push, and the jobs of the runs whose events are in it."""

    jobs: dict[str, LockedJob]
    runs: dict[str, LockedRun]


_HOST, _JOB, _RUN = table_of(HostRow), table_of(JobRow), table_of(RunRow)
_OF_AGENT: Final = select(_HOST.c.id).where(
    _HOST.c.id == bindparam("host"), _HOST.c.instance == bindparam("instance"), _HOST.c.state != HostState.REMOVED
)
_OWN: Final = or_(bindparam("host", type_=String).is_(None), _RUN.c.host.in_(_OF_AGENT))
_JOBS: Final = (
    select(_JOB.c.id, _JOB.c.generation, _JOB.c.restarts, _JOB.c.metrics)
    .where(_JOB.c.id.in_(select(_RUN.c.job).where(_RUN.c.id.in_(bindparam("events", expanding=True)), _OWN)))
    .order_by(_JOB.c.id)
    .with_for_update(key_share=True)
)
_RUNS: Final = (
    select(
        _RUN.c.id,
        _RUN.c.job,
        _RUN.c.state,
        _RUN.c.events_offset,
        _RUN.c.ingest_state,
        _RUN.c.log_offset,
        _RUN.c.checkpoint_bytes,
        _HOST.c.name,
    )
    .join(_HOST, _HOST.c.id == _RUN.c.host)
    .where(_RUN.c.id.in_(bindparam("runs", expanding=True)), _OWN)
    .order_by(_RUN.c.id)
    .with_for_update(key_share=True, of=_RUN)
)


async def lock(
    session: AsyncSession,
    *,
    events: Iterable[str] = (),
    logs: Iterable[str] = (),
    agent: tuple[str, str] | tuple[None, None] = (None, None),
) -> Locked:
    """Lock the rows of the runs whose ids are in `events` or `logs`, and of the jobs of those in `events`.

    Unknown runs are left out, and those of other hosts than that of `agent`: the host's id, and its agent's instance.
    """
    with_events = sorted(set(events))
    chosen = {"events": with_events, "runs": sorted({*with_events, *logs}), "host": agent[0], "instance": agent[1]}
    jobs = [LockedJob(*row) for row in await session.execute(_JOBS, chosen)] if with_events else []
    runs = [LockedRun(*row) for row in await session.execute(_RUNS, chosen)]
    return Locked({job.id: job for job in jobs}, {run.id: run for run in runs})


async def write(session: AsyncSession, locked: Locked) -> None:
    """Store how far the events and logs of the runs are stored."""
    names = ("id", "events_offset", "ingest_state", "log_offset")
    rows = [{name: getattr(run, name) for name in names} for run in locked.runs.values() if run.changed]
    await update_all(session, RunRow, rows, keys=("id",))
