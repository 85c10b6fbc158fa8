"""Whether the service lives, is ready, and is well. The first two need no token, by exactly these paths."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from clonos.errors import StoreAway
from clonos.resources.service import Health
from clonos_api import lookups
from clonos_api.documented import problems
from clonos_api.routes.access import API, Viewer
from clonos_api.services import Replica, Services

# At the root: load balancers and container engines look there.
open_router = APIRouter(prefix="/health", tags=["health"])
router = APIRouter(prefix=f"{API}/health", tags=["health"])

_LOOK_S = 2.0


class Alive(BaseModel):
    """The process answers, or can do its work."""

    status: Literal["ok"] = "ok"


@open_router.get("/live")
async def get_liveness() -> Alive:
    """Whether the process answers at all."""
    return Alive()


@open_router.get("/ready", responses=problems(503))
async def get_readiness(replica: Replica) -> Alive:
    """Whether requests can be answered: the database is there, with the tables of this version."""
    away, _ = await _database(replica)
    if away:
        raise StoreAway(away)
    return Alive()


@router.get("")
async def get_health(caller: Viewer, replica: Replica) -> Health:
    """What works and what does not; 200 also when something does not."""
    away, leader = await _database(replica)
    failing = replica.failing()
    return Health(
        status="degraded" if away or failing else "ok",
        version=version("clonos"),
        database="away" if away else "ok",
        leader=leader is not None and leader.startswith(f"{replica.settings.replica}:"),
        checks={**({"database": away} if away else {}), **failing},
    )


async def _database(replica: Services) -> tuple[str, str | None]:
    """What is wrong with the database, if anything; and who leads."""
    if replica.schema_trouble:
        return replica.schema_trouble, None
    try:
        async with asyncio.timeout(_LOOK_S), replica.database.reading() as session:
            return "", await lookups.leader(session)
    except (StoreAway, TimeoutError) as error:
        return str(error) or "The database does not answer in time.", None
