"""The pages of recoveries: the list of all jobs, and one recovery with its phases and what was lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.incidents import post_mortem, sentence
from clonos.resources.jobs import Phase, Recovery
from clonos.resources.recovery_descriptions import PHASES
from clonos_api.dashboard.rendering import Page, render
from clonos_api.fleet.strip import health_of
from clonos_api.replica import DatabaseDep
from clonos_api.routes.access import IdPath, KnownJob, Viewer
from clonos_api.store import incidents, recoveries, views
from clonos_api.store.db.paging import TIME_CURSOR, Window
from clonos_api.store.tables import EpochRow

router = APIRouter(include_in_schema=False)
_EARLIER: Final = Window(20)
_PAGE: Final = 50
# Epochs that are searched for one of each query.
_NEAR: Final = 50


@dataclass(frozen=True)
class Bar:
    """One phase of a recovery as a bar in the waterfall chart."""

    phase: Phase
    after_ms: float  # sum of the durations of the previous phases
    left: float  # `after_ms` in percent of all phases' duration
    width: float  # duration, in percent of all phases' duration
    words: str  # description of the phase


def waterfall(recovery: Recovery) -> list[Bar]:
    """Return the phases of a recovery as bars of a waterfall chart, one after the other.

    Each phase is measured by the clock of its host, so start times of different hosts are not compared: a phase starts
    at the end of the previous one.
    """
    whole = sum(phase.duration_ms for phase in recovery.phases) or 1.0
    bars, after = [], 0.0
    for phase in recovery.phases:
        share = 100 / whole
        words = PHASES.get(phase.name, "")
        bars.append(Bar(phase, after, after * share, phase.duration_ms * share, words))
        after += phase.duration_ms
    return bars


@dataclass(frozen=True)
class SourcePosition:
    """Offset of a source partition before and after a recovery: after the last epoch before the failure, and after
    the first epoch after it.
    """

    query: str
    topic: str
    partition: str
    before: int | None
    after: int | None


async def _positions(session: AsyncSession, recovery: Recovery) -> list[SourcePosition]:
    before = await _epochs(
        session, recovery.job, EpochRow.completed_at < recovery.started_at, EpochRow.completed_at.desc()
    )
    after = await _epochs(session, recovery.job, EpochRow.completed_at >= recovery.started_at, EpochRow.completed_at)
    positions = []
    for query in sorted(after):
        old = before.get(query, {})
        for topic, partitions in sorted(after[query].items()):
            for partition, offset in sorted(partitions.items(), key=lambda item: int(item[0])):
                positions.append(SourcePosition(query, topic, partition, old.get(topic, {}).get(partition), offset))
    return positions


async def _epochs(
    session: AsyncSession, job: str, there: ColumnElement[bool], order: Any
) -> dict[str, dict[str, dict[str, int]]]:
    """Return the offsets of the first epoch of each query in this order."""
    rows = select(EpochRow.query, EpochRow.body).where(EpochRow.job == job, there).order_by(order).limit(_NEAR)
    offsets: dict[str, dict[str, dict[str, int]]] = {}
    for query, body in await session.execute(rows):
        offsets.setdefault(query, body.offsets)
    return offsets


@router.get("/recoveries")
async def list_recoveries(
    caller: Viewer,
    request: Request,
    database: DatabaseDep,
    starting_after: Annotated[str | None, Query(pattern=TIME_CURSOR)] = None,
) -> Response:
    """Show a page of the recoveries of all jobs, newest first."""
    async with database.reading() as session:
        page = await incidents.page(session, Window(_PAGE, starting_after))
    longest = max((recovery.downtime_ms or 0.0 for recovery in page.rows), default=0.0)
    values = {"recoveries": page.rows, "longest": longest, "more": page.next, "follow": starting_after is None}
    return render(request, Page("recoveries.html", "Recoveries"), values)


@router.get("/jobs/{job}/recoveries/{recovery}")
async def show_recovery(
    recovery: IdPath,
    caller: Viewer,
    request: Request,
    database: DatabaseDep,
    row: KnownJob,
) -> Response:
    """Show the page of one recovery."""
    async with database.reading() as session:
        incident = await incidents.get(session, row, recovery)
        offsets = await _positions(session, incident)
        others = [views.recovery(listed) for listed in (await recoveries.page(session, row.id, _EARLIER)).rows]
    longest = max((other.downtime_ms or 0.0 for other in others), default=0.0)
    values = {
        "job": row,
        "recovery": incident,
        # A script counts the seconds of a recovery in progress, so its sentence has none.
        "lead": sentence(incident, row.name, loss=incident.loss),
        "health": health_of(incident),
        "post_mortem": post_mortem(incident),
        "bars": waterfall(incident),
        "offsets": offsets,
        "whole_ms": sum(phase.duration_ms for phase in incident.phases),
        "others": [(other, sentence(other)) for other in others],
        "longest": longest,
    }
    return render(request, Page("recovery.html", f"Recovery of {row.name}"), values)
