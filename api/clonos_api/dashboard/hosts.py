"""Hosts: what each has, and what it can take."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from sqlalchemy import select

from clonos.resources.hosts import HostState
from clonos_api import lookups, views
from clonos_api.dashboard.rendering import Page, render
from clonos_api.routes.access import Viewer
from clonos_api.services import Store
from clonos_api.store import agents, standbys
from clonos_api.store.tables import JobRow, RunRow, StandbyRow

router = APIRouter(include_in_schema=False)


@router.get("/hosts")
async def hosts(caller: Viewer, request: Request, store: Store) -> Response:
    """All hosts, and what runs or waits on them."""
    async with store.reading() as session:
        rows = [row for row in await agents.every(session) if row.state != HostState.REMOVED]
        loads = await agents.loads(session)
        running = (
            select(RunRow.agent, JobRow.name, RunRow.state)
            .join(JobRow, JobRow.run == RunRow.id)
            .where(RunRow.ended_at.is_(None), JobRow.deleted_at.is_(None))
            .order_by(JobRow.name)
        )
        drivers: dict[str, list[tuple[str, str]]] = {}
        for agent, job, state in await session.execute(running):
            drivers.setdefault(agent, []).append((job, state))
        warming = select(StandbyRow).where(StandbyRow.state.in_(standbys.WAITING)).order_by(StandbyRow.id)
        waiting = list(await session.scalars(warming))
        names = await lookups.host_names(session)
        lags = await standbys.lags(session, waiting)
        of = select(JobRow.id, JobRow.name).where(JobRow.id.in_({one.job for one in waiting}))
        jobs = dict((await session.execute(of)).all()) if waiting else {}
    warm: dict[str, list[tuple[str, object]]] = {}
    for one in waiting:
        warm.setdefault(one.agent, []).append(
            (jobs.get(one.job or "", ""), views.standby(one, names, lags.get(one.id)))
        )
    shown = [(views.host(row, loads.get(row.id, 0)), drivers.get(row.id, []), warm.get(row.id, [])) for row in rows]
    return render(request, Page("hosts.html", "Hosts"), {"hosts": shown})
