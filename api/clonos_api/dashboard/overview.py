"""The overview: every job at one glance."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from starlette.requests import HTTPConnection

from clonos_api.dashboard.board import Board, Boards
from clonos_api.dashboard.live import figures
from clonos_api.dashboard.rendering import Page, render
from clonos_api.routes.access import Viewer

router = APIRouter(include_in_schema=False)


async def boards(connection: HTTPConnection) -> Boards:
    """What all overviews of this replica show."""
    found: Boards = connection.app.state.boards
    return found


@router.get("/")
async def overview(caller: Viewer, request: Request, shared: Annotated[Boards, Depends(boards)]) -> Response:
    """Hosts as columns, jobs as rows."""
    board: Board = await shared.newest()
    rows = [(line, figures(line)) for line in board.lines]
    return render(request, Page("overview.html", "Overview"), {"board": board, "rows": rows})
