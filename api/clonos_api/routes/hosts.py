"""REST routes for users about hosts and standbys."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.base import Page
from clonos.resources.hosts import Host, Standby
from clonos_api.guards.idempotency import Once, OnceDep
from clonos_api.http.bodies import TEXT, StandbyStates
from clonos_api.http.checked_json import CheckedRoute
from clonos_api.replica import DatabaseDep
from clonos_api.routes.access import API, Admin, NameWindowDep, ReadingDep, Viewer, WindowDep, changing
from clonos_api.routes.documented import problems
from clonos_api.store import hosts, lookups, standbys, views
from clonos_api.store.db import paging

router = APIRouter(route_class=CheckedRoute, prefix=f"{API}/hosts", tags=["hosts"])
standby_router = APIRouter(route_class=CheckedRoute, prefix=f"{API}/standbys", tags=["hosts"])

HostPath = Annotated[str, Path(min_length=1, max_length=100, pattern=TEXT, description="Name or id of a host.")]


@router.get("")
async def list_hosts(caller: Viewer, session: ReadingDep, window: NameWindowDep) -> Page[Host]:
    """List the hosts by name."""
    result = paging.by_name(await hosts.every(session), lambda row: row.name, window)
    loads = await hosts.loads(session)
    return views.listed((views.host(row, loads.get(row.id, 0)) for row in result.rows), result.next)


@router.get("/{name}")
async def get_host(name: HostPath, caller: Viewer, session: ReadingDep) -> Host:
    """Get one host by its name."""
    return await _shown(session, name)


@router.post("/{name}/drain", response_model=Host)
async def drain_host(name: HostPath, caller: Admin, database: DatabaseDep, once: OnceDep) -> Response:
    """Drain a host: it gets no new jobs, and its jobs move to other hosts."""
    return await _drain(database, caller, name, once, drained=True)


@router.post("/{name}/undrain", response_model=Host)
async def undrain_host(name: HostPath, caller: Admin, database: DatabaseDep, once: OnceDep) -> Response:
    """Undrain a host: it accepts jobs again."""
    return await _drain(database, caller, name, once, drained=False)


@router.delete("/{name}", status_code=204, responses=problems(409))
async def remove_host(name: HostPath, caller: Admin, database: DatabaseDep) -> None:
    """Remove a host without runs. Its agent exits."""

    async def change(session: AsyncSession) -> None:
        await hosts.remove(session, await hosts.get(session, name))

    await changing(database, caller.actor, change)


@standby_router.get("")
async def list_standbys(
    caller: Viewer,
    session: ReadingDep,
    window: WindowDep,
    state: StandbyStates = None,
) -> Page[Standby]:
    """List the standbys of all jobs, current and former, newest first."""
    names = await lookups.host_names(session)
    result = await standbys.page(session, window, states=state)
    lags = await standbys.lags(session, result.rows)
    return views.listed((views.standby(standby, names, lags.get(standby.id)) for standby in result.rows), result.next)


async def _drain(database: DatabaseDep, caller: Admin, name: str, once: Once, *, drained: bool) -> Response:
    async def change(session: AsyncSession) -> Response:
        await hosts.drain(session, await hosts.get(session, name), drained)
        return await once.answer(session, 200, await _shown(session, name))

    return await changing(database, caller.actor, change)


async def _shown(session: AsyncSession, name: str) -> Host:
    row = await hosts.get(session, name)
    return views.host(row, (await hosts.loads(session)).get(row.id, 0))
