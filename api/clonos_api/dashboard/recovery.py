"""One recovery: its waterfall to the millisecond, and how it compares with the job's earlier ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request, Response
from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.jobs import Phase, Recovery
from clonos.resources.recovery_words import CAUSES, OUTCOMES, PHASES
from clonos_api import views
from clonos_api.dashboard.rendering import Page, render
from clonos_api.routes.access import IdPath, Viewer, known_job
from clonos_api.services import Store
from clonos_api.store import recoveries
from clonos_api.store.tables import EpochRow, JobRow

router = APIRouter(include_in_schema=False)
_EARLIER: Final = 20
# Epochs that are looked through for one of each query.
_NEAR: Final = 50


@dataclass(frozen=True)
class Bar:
    """A phase in the waterfall.

    Attributes:
        left: Where it begins, of the whole, in percent.
        width: How long it is, likewise.
    """

    phase: Phase
    after_ms: float
    left: float
    width: float
    words: str


def waterfall(found: Recovery) -> list[Bar]:
    """The phases of a recovery, one behind the other.

    Each is by the clock of the host on which it happened, so the times at which they began are not compared: a phase
    begins where the one before it ends.
    """
    whole = sum(phase.duration_ms for phase in found.phases) or 1.0
    bars, after = [], 0.0
    for phase in found.phases:
        share = 100 / whole
        words = PHASES.get(phase.name, "")
        bars.append(Bar(phase, after, after * share, phase.duration_ms * share, words))
        after += phase.duration_ms
    return bars


@dataclass(frozen=True)
class Place:
    """How far one partition was read by the last epoch before a recovery, and by the first one after it."""

    query: str
    topic: str
    partition: str
    before: int | None
    after: int | None


async def _places(session: AsyncSession, found: Recovery) -> list[Place]:
    before = await _epochs(session, found.job, EpochRow.completed_at < found.started_at, EpochRow.completed_at.desc())
    after = await _epochs(session, found.job, EpochRow.completed_at >= found.started_at, EpochRow.completed_at)
    places = []
    for query in sorted(after):
        old = before.get(query, {})
        for topic, partitions in sorted(after[query].items()):
            for partition, offset in sorted(partitions.items(), key=lambda one: int(one[0])):
                places.append(Place(query, topic, partition, old.get(topic, {}).get(partition), offset))
    return places


async def _epochs(
    session: AsyncSession, job: str, there: ColumnElement[bool], order: Any
) -> dict[str, dict[str, dict[str, int]]]:
    """Query → the offsets of its epoch that comes first in this order."""
    rows = select(EpochRow.query, EpochRow.body).where(EpochRow.job == job, there).order_by(order).limit(_NEAR)
    found: dict[str, dict[str, dict[str, int]]] = {}
    for query, body in await session.execute(rows):
        found.setdefault(query, body.get("offsets") or {})
    return found


@router.get("/jobs/{job}/recoveries/{recovery}")
async def show_recovery(
    recovery: IdPath, caller: Viewer, request: Request, store: Store, row: Annotated[JobRow, Depends(known_job)]
) -> Response:
    """The page."""
    async with store.reading() as session:
        found = views.recovery(await recoveries.get(session, row.id, recovery))
        offsets = await _places(session, found)
        others = [views.recovery(one) for one in (await recoveries.page(session, row.id, limit=_EARLIER)).rows]
    longest = max((one.gap_ms or 0.0 for one in others), default=0.0)
    values = {
        "job": row,
        "recovery": found,
        "bars": waterfall(found),
        "offsets": offsets,
        "whole_ms": sum(phase.duration_ms for phase in found.phases),
        "others": others,
        "longest": longest,
        "causes": CAUSES,
        "outcomes": OUTCOMES,
    }
    return render(request, Page("recovery.html", f"Recovery of {row.name}"), values)
