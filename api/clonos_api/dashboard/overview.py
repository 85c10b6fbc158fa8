"""The overview page: hosts as columns, jobs as rows."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from clonos_api.dashboard.live import PulseDep
from clonos_api.dashboard.rendering import Page, render
from clonos_api.routes.access import Viewer

router = APIRouter(include_in_schema=False)


@router.get("/")
async def overview(caller: Viewer, request: Request, pulse: PulseDep) -> Response:
    """Show hosts as columns and jobs as rows."""
    board = await pulse.boards.newest()
    values = {"board": board, "shown": pulse.drawn.around(board), "rows": await pulse.drawn.filled(board)}
    return render(request, Page("overview.html", "Overview"), values)
