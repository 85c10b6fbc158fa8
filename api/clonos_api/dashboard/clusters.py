"""The clusters page: each Spark cluster with its state, what its last check saw, and its jobs."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from clonos_api.dashboard.rendering import Page, render
from clonos_api.replica import DatabaseDep
from clonos_api.routes.access import Viewer
from clonos_api.store import clusters, views

router = APIRouter(include_in_schema=False)


@router.get("/clusters")
async def show_clusters(caller: Viewer, request: Request, database: DatabaseDep) -> Response:
    """Show all Spark clusters."""
    async with database.reading() as session:
        rows = await clusters.every(session)
        users = await clusters.users(session)
        shown = [views.cluster(row, users.get(name, [])) for name, row in rows.items()]
    return render(request, Page("clusters.html", "Spark clusters"), {"clusters": shown})
