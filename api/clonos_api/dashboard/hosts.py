"""The hosts page: capacity, drivers and standbys of every host."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from sqlalchemy import select

from clonos_api.dashboard.rendering import Page, render
from clonos_api.replica import DatabaseDep
from clonos_api.routes.access import Viewer
from clonos_api.store import hosts, lookups, standbys, views
from clonos_api.store.tables import JobRow, RunRow, StandbyRow

router = APIRouter(include_in_schema=False)


@router.get("/hosts")
async def show_hosts(caller: Viewer, request: Request, database: DatabaseDep) -> Response:
    """Show all hosts with their drivers and standbys."""
    async with database.reading() as session:
        rows = await hosts.every(session)
        loads = await hosts.loads(session)
        running = (
            select(RunRow.host, JobRow.name, RunRow.state)
            .join(JobRow, JobRow.run == RunRow.id)
            .where(RunRow.ended_at.is_(None), JobRow.deleted_at.is_(None))
            .order_by(JobRow.name)
        )
        drivers: dict[str, list[tuple[str, str]]] = {}
        for host, job, state in await session.execute(running):
            drivers.setdefault(host, []).append((job, state))
        warming = select(StandbyRow).where(StandbyRow.state.in_(standbys.WAITING)).order_by(StandbyRow.id)
        waiting = list(await session.scalars(warming))
        names = await lookups.host_names(session)
        lags = await standbys.lags(session, waiting)
        of = select(JobRow.id, JobRow.name).where(JobRow.id.in_({row.job for row in waiting}))
        jobs = dict((await session.execute(of)).all()) if waiting else {}
    warm: dict[str, list[tuple[str, object]]] = {}
    for row in waiting:
        standby = views.standby(row, names, lags.get(row.id))
        warm.setdefault(row.host, []).append((jobs.get(row.job or "", ""), standby))
    shown = [(views.host(row, loads.get(row.id, 0)), drivers.get(row.id, []), warm.get(row.id, [])) for row in rows]
    return render(request, Page("hosts.html", "Hosts"), {"hosts": shown})
