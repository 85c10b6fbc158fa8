"""The overview: every job at one glance."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from starlette.requests import HTTPConnection

from clonos_api.dashboard.live import Pulse
from clonos_api.dashboard.rendering import Page, render
from clonos_api.routes.access import Viewer

router = APIRouter(include_in_schema=False)


async def pulse_of(connection: HTTPConnection) -> Pulse:
    """What all overviews of this replica show."""
    found: Pulse = connection.app.state.pulse
    return found


@router.get("/")
async def overview(caller: Viewer, request: Request, pulse: Annotated[Pulse, Depends(pulse_of)]) -> Response:
    """Hosts as columns, jobs as rows."""
    board = await pulse.boards.newest()
    shown = pulse.drawn.around(board)
    return render(
        request,
        Page("overview.html", "Overview"),
        {"board": board, "shown": shown, "rows": await pulse.drawn.filled(board)},
    )
