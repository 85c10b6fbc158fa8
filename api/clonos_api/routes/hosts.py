"""Hosts, and the warm drivers on them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.base import Page
from clonos.resources.hosts import Agent, Standby
from clonos_api import lookups, views
from clonos_api.bodies import Limit, StandbyStates, StartingAfter, page
from clonos_api.documented import problems
from clonos_api.idempotency import Once, idempotent
from clonos_api.routes.access import API, Admin, Viewer, changing
from clonos_api.services import Store
from clonos_api.store import agents, standbys

router = APIRouter(prefix=f"{API}/hosts", tags=["hosts"])
standby_router = APIRouter(prefix=f"{API}/standbys", tags=["hosts"])

HostPath = Annotated[str, Path(min_length=1, max_length=100, description="Name or id of a host.")]


@router.get("")
async def list_hosts(caller: Viewer, store: Store) -> Page[Agent]:
    """All hosts, by name."""
    async with store.reading() as session:
        rows = await agents.every(session)
        loads = await agents.loads(session)
    return page((views.host(row, loads.get(row.id, 0)) for row in rows), None)


@router.get("/{name}")
async def get_host(name: HostPath, caller: Viewer, store: Store) -> Agent:
    """One host."""
    async with store.reading() as session:
        return await _shown(session, name)


@router.post("/{name}/drain", response_model=Agent)
async def drain_host(name: HostPath, caller: Admin, store: Store, once: Annotated[Once, idempotent()]) -> Response:
    """Give a host nothing new, and move its jobs elsewhere."""
    return await _drain(store, caller, name, once, drained=True)


@router.post("/{name}/undrain", response_model=Agent)
async def undrain_host(name: HostPath, caller: Admin, store: Store, once: Annotated[Once, idempotent()]) -> Response:
    """Let a host have jobs again."""
    return await _drain(store, caller, name, once, drained=False)


@router.delete("/{name}", status_code=204, responses=problems(409))
async def remove_host(name: HostPath, caller: Admin, store: Store) -> None:
    """Forget a host that runs nothing; its agent ends."""

    async def change(session: AsyncSession) -> None:
        await agents.remove(session, await agents.get(session, name))

    await changing(store, caller.actor, change)


@standby_router.get("")
async def list_standbys(
    caller: Viewer, store: Store, state: StandbyStates = None, limit: Limit = 50, starting_after: StartingAfter = None
) -> Page[Standby]:
    """All warm drivers, also those that are over."""
    async with store.reading() as session:
        names = await lookups.host_names(session)
        found = await standbys.page(session, states=state, limit=limit, starting_after=starting_after)
        lags = await standbys.lags(session, found.rows)
    return page((views.standby(one, names, lags.get(one.id)) for one in found.rows), found.next)


async def _drain(store: Store, caller: Admin, name: str, once: Once, *, drained: bool) -> Response:
    async def change(session: AsyncSession) -> Response:
        await agents.drain(session, await agents.get(session, name), drained)
        return await once.answer(session, 200, await _shown(session, name))

    return await changing(store, caller.actor, change)


async def _shown(session: AsyncSession, name: str) -> Agent:
    row = await agents.get(session, name)
    return views.host(row, (await agents.loads(session)).get(row.id, 0))
