"""REST route ``/metrics`` for Prometheus.

A scrape needs a viewer's token (``authorization`` in Prometheus' configuration).
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from clonos_api.metrics.families import exposition
from clonos_api.metrics.queries import read
from clonos_api.replica import ReplicaDep
from clonos_api.routes.access import Viewer
from clonos_api.store import lookups

router = APIRouter(tags=["health"])


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def get_prometheus(caller: Viewer, replica: ReplicaDep) -> Response:
    """Get the metrics of all jobs and hosts, and of this replica, in the Prometheus text format."""
    async with replica.database.reading() as session:
        figures = await read(session)
        leads = await lookups.leads(session, replica.settings.replica)
    # In a thread: for a thousand jobs it takes a third of a second, and heartbeats must not wait for it.
    text = await asyncio.to_thread(exposition, figures, leads=leads, free_bytes=replica.database.free_bytes())
    return Response(text + generate_latest(replica.registry), media_type=CONTENT_TYPE_LATEST)
