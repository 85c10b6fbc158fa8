"""One recovery: its waterfall to the millisecond, and how it compares with the job's earlier ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request, Response

from clonos.resources.jobs import Phase, Recovery
from clonos.resources.recovery_words import CAUSES, OUTCOMES, PHASES
from clonos_api import views
from clonos_api.dashboard.rendering import Page, render
from clonos_api.routes.access import IdPath, Viewer, known_job
from clonos_api.services import Store
from clonos_api.store import recoveries
from clonos_api.store.tables import JobRow

router = APIRouter(include_in_schema=False)
_EARLIER: Final = 20


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


@router.get("/jobs/{job}/recoveries/{recovery}")
async def show_recovery(
    recovery: IdPath, caller: Viewer, request: Request, store: Store, row: Annotated[JobRow, Depends(known_job)]
) -> Response:
    """The page."""
    async with store.reading() as session:
        found = views.recovery(await recoveries.get(session, row.id, recovery))
        others = [views.recovery(one) for one in (await recoveries.page(session, row.id, limit=_EARLIER)).rows]
    longest = max((one.gap_ms or 0.0 for one in others), default=0.0)
    values = {
        "job": row,
        "recovery": found,
        "bars": waterfall(found),
        "whole_ms": sum(phase.duration_ms for phase in found.phases),
        "others": others,
        "longest": longest,
        "causes": CAUSES,
        "outcomes": OUTCOMES,
    }
    return render(request, Page("recovery.html", f"Recovery of {row.name}"), values)
