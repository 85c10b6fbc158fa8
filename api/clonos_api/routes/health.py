"""REST routes for liveness, readiness, health and metrics. Liveness and readiness need no token; a scrape of Prometheus
needs that of a viewer.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Literal

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from clonos.errors import DatabaseUnavailable
from clonos.resources.base import Resource
from clonos.resources.service import Health
from clonos_api.metrics.families import exposition
from clonos_api.metrics.queries import read
from clonos_api.replica import Replica, ReplicaDep
from clonos_api.routes.access import API, Viewer
from clonos_api.routes.documented import problems
from clonos_api.store import lookups

# At the root: load balancers and container engines expect these paths.
open_router = APIRouter(prefix="/health", tags=["health"])
router = APIRouter(prefix=f"{API}/health", tags=["health"])
metrics_router = APIRouter(tags=["health"])

_TIMEOUT_S = 2.0


class Alive(Resource):
    """Response of the liveness and readiness routes if the check succeeds."""

    status: Literal["ok"] = "ok"
    """Always ``ok``; a failed check is a problem."""


@open_router.head("/live", include_in_schema=False)
@open_router.get("/live")
async def get_liveness() -> Alive:
    """Check that the process responds."""
    return Alive()


@open_router.head("/ready", include_in_schema=False)
@open_router.get("/ready", responses=problems(503))
async def get_readiness(replica: ReplicaDep) -> Alive:
    """Check that the database is available, has the schema of this version, and space on its disk."""
    unavailable, *_ = await _database(replica)
    if unavailable := unavailable or replica.database.disk_trouble():
        raise DatabaseUnavailable(unavailable)
    return Alive()


@router.get("")
async def get_health(caller: Viewer, replica: ReplicaDep) -> Health:
    """Get the health of the replica and its dependencies. The status is 200 also when a check fails."""
    unavailable, leads, leaderless = await _database(replica)
    failing = replica.failing()
    if full := replica.database.disk_trouble():
        failing["disk"] = full
    if unavailable:
        failing["database"] = unavailable
    elif leaderless and replica.settings.reconcile and replica.age_s > lookups.LEADERLESS_S:
        failing["leader"] = "No replica leads: jobs are neither started nor recovered."
    return Health(
        status="degraded" if failing else "ok",
        version=version("clonos"),
        database="unavailable" if unavailable else "ok",
        leader=leads,
        checks=failing,
    )


async def _database(replica: Replica) -> tuple[str, bool, bool]:
    """Return the failure of the database, if any; whether this replica leads; and whether none does.

    All requests of one moment share a check, and none waits until a check that timed out has ended: the rollback on a
    server that is stopped takes longer.
    """
    if replica.schema_trouble:
        return replica.schema_trouble, False, False
    if replica.health_check is None or replica.health_check.done():
        replica.health_check = asyncio.create_task(_checked(replica), name="clonos-health")
    done, _ = await asyncio.wait([replica.health_check], timeout=_TIMEOUT_S)
    return replica.health_check.result() if done else ("The database timed out.", False, False)


async def _checked(replica: Replica) -> tuple[str, bool, bool]:
    try:
        async with asyncio.timeout(_TIMEOUT_S), replica.database.reading() as session:
            leads = await lookups.leads(session, replica.settings.replica)
            return "", leads, not leads and await lookups.leaderless(session)
    except (DatabaseUnavailable, TimeoutError) as error:
        return str(error) or "The database timed out.", False, False


@metrics_router.get(
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
