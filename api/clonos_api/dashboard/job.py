"""A job: how it is doing, what it went through, and what one can do to it."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Final, Literal

import yaml
from fastapi import APIRouter, Depends, Query, Request, Response
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.checkpoints import Checkpoint
from clonos.resources.figures import size
from clonos.resources.jobs import JobVersion
from clonos_api import lookups, views
from clonos_api.dashboard.rendering import Page, render
from clonos_api.routes.access import Viewer, known_job
from clonos_api.services import Store
from clonos_api.store import counters, exceptions, generations, jobs, progress, recoveries, savepoints, standbys
from clonos_api.store.tables import JobRow

router = APIRouter(include_in_schema=False)

Tab = Literal["epochs", "recoveries", "checkpoints", "log", "sinks", "standbys", "exceptions", "logs", "spec"]
TABS: Final[dict[str, str]] = {
    "epochs": "Epochs",
    "recoveries": "Recoveries",
    "checkpoints": "Checkpoints and savepoints",
    "log": "Causal log",
    "sinks": "Sinks",
    "standbys": "Standbys",
    "exceptions": "Exceptions",
    "logs": "Logs",
    "spec": "Specification",
}
_EPOCHS: Final = 120
_ROWS: Final = 50


@router.get("/jobs/{job}")
async def show_job(
    caller: Viewer,
    request: Request,
    store: Store,
    row: Annotated[JobRow, Depends(known_job)],
    tab: Tab = "epochs",
    version: Annotated[int | None, Query(ge=1)] = None,
) -> Response:
    """One tab of a job's page."""
    async with store.reading() as session:
        names = await lookups.hosts_of_runs(session, [row.run])
        shown = views.job(row, names.get(row.run or ""))
        values: dict[str, Any] = {
            "job": shown,
            "deleted": row.deleted_at,
            "moving": row.moving,
            "mine": caller.subject == row.owner,
            "metrics": await progress.metrics(session, row),
            "offsets": await progress.offsets(session, row),
            "tab": tab,
            "tabs": TABS,
            **await _TABS[tab](session, row, version),
        }
    return render(request, Page("job.html", shown.name, charts=True), values)


async def _epochs(session: AsyncSession, row: JobRow, version: int | None) -> dict[str, Any]:
    found = (await progress.page(session, row.id, limit=_EPOCHS)).rows
    return {"epochs": found, "timeline": [_point(one) for one in reversed(found)]}


def _point(one: Checkpoint) -> dict[str, Any]:
    return {
        "epoch": one.epoch,
        "query": one.query,
        "at": one.completed_at.isoformat(),
        "ms": round(one.duration_ms, 1),
        "in": one.records_in,
        "out": one.records_out,
        "size": size(one.size_bytes) or "of unknown size",
        "lanes": one.published_lanes,
        "replay": one.trigger == "REPLAY",
    }


async def _recoveries(session: AsyncSession, row: JobRow, version: int | None) -> dict[str, Any]:
    found = (await recoveries.page(session, row.id, limit=_ROWS)).rows
    claims = (await generations.page(session, row.id, limit=_ROWS)).rows
    hosts = await lookups.hosts_of_runs(session, [one.run for one in claims])
    return {
        "recoveries": [views.recovery(one) for one in found],
        "generations": [views.generation(one, hosts.get(one.run, "")) for one in claims],
    }


async def _checkpoints(session: AsyncSession, row: JobRow, version: int | None) -> dict[str, Any]:
    kept = (await savepoints.page(session, job=row.id, limit=_ROWS)).rows
    return {
        "checkpoints": await progress.checkpoints(session, row.id, limit=20),
        "savepoints": [views.savepoint(one) for one in kept],
    }


async def _log(session: AsyncSession, row: JobRow, version: int | None) -> dict[str, Any]:
    sums = await counters.of_job(session, row.id)
    return {"log": await progress.causal_log(session, row), "diverged": sums.get("diverged_lanes", 0)}


async def _sinks(session: AsyncSession, row: JobRow, version: int | None) -> dict[str, Any]:
    return {"sums": await counters.of_job(session, row.id)}


async def _standbys(session: AsyncSession, row: JobRow, version: int | None) -> dict[str, Any]:
    names = await lookups.host_names(session)
    found = (await standbys.page(session, job=row.id, limit=_ROWS)).rows
    lags = await standbys.lags(session, found)
    return {"standbys": [views.standby(one, names, lags.get(one.id)) for one in found]}


async def _exceptions(session: AsyncSession, row: JobRow, version: int | None) -> dict[str, Any]:
    found = (await exceptions.page(session, row.id, limit=_ROWS)).rows
    return {"exceptions": [views.job_exception(one) for one in found]}


async def _logs(session: AsyncSession, row: JobRow, version: int | None) -> dict[str, Any]:
    return {}


async def _spec(session: AsyncSession, row: JobRow, version: int | None) -> dict[str, Any]:
    found = [views.job_version(one) for one in (await jobs.versions(session, row.id, limit=_ROWS)).rows]
    other = next((one for one in found if one.version == version), None)
    newest = found[0] if found else None
    diff = [] if other is None or newest is None else _difference(other, newest)
    return {"versions": found, "text": _text(newest) if newest else "", "other": other, "diff": diff}


def _difference(old: JobVersion, new: JobVersion) -> list[str]:
    lines = difflib.unified_diff(
        [*_text(old).splitlines(), f"# code {old.artifact}"],
        [*_text(new).splitlines(), f"# code {new.artifact}"],
        f"version {old.version}",
        f"version {new.version}",
        lineterm="",
    )
    return list(lines)


def _text(version: JobVersion) -> str:
    return yaml.safe_dump(version.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True), sort_keys=False)


_TABS: Final = {
    "epochs": _epochs,
    "recoveries": _recoveries,
    "checkpoints": _checkpoints,
    "log": _log,
    "sinks": _sinks,
    "standbys": _standbys,
    "exceptions": _exceptions,
    "logs": _logs,
    "spec": _spec,
}
