"""REST route for the state of all jobs, as the dashboard's overview shows it."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter

from clonos.resources.figures import age
from clonos.resources.status import Dependencies, Forecast, JobHealth, JobStatus, Status
from clonos_api.fleet import Health, Line
from clonos_api.fleet.banner import NAMED, banner_of, trouble_of
from clonos_api.http.checked_json import CheckedRoute
from clonos_api.replica import ReplicaDep
from clonos_api.routes.access import API, Viewer

router = APIRouter(route_class=CheckedRoute, prefix=f"{API}/status", tags=["health"])

_WORDS: Final[dict[Health, JobHealth]] = {
    "good": "healthy",
    "weak": "degraded",
    "busy": "changing",
    "bad": "failing",
    "idle": "not running",
}


@router.get("")
async def get_status(caller: Viewer, replica: ReplicaDep) -> Status:
    """Get the state of all jobs, hosts and Kafka, at most a few seconds old."""
    board = await replica.boards.newest()
    banner, kafka = banner_of(board), board.dependencies
    stalls = [
        f"{line.name}: no output for {age(line.stall.since, board.at)}; {line.stall.why}."
        for line in banner.stalled
        if line.stall is not None
    ]
    named = [f"{line.name} {trouble_of(line, brief=banner.brief)}" for line in banner.failing[:NAMED]]
    if len(banner.failing) > NAMED:
        named.append(f"{len(banner.failing) - NAMED} more jobs are failing.")
    return Status(
        at=board.at,
        health=_WORDS[banner.health],
        summary=" ".join(filter(None, [*stalls, *named, banner.headline, banner.detail])),
        led=board.led,
        counts={_WORDS[health]: count for health, count in board.counts().items()},
        hosts={head.name: head.state for head in board.hosts},
        dependencies=Dependencies(
            brokers=kafka.brokers,
            silent=list(kafka.silent),
            waiting=list(kafka.waiting),
            under_replicated=kafka.under_replicated,
            open_transactions=kafka.open_transactions,
        ),
        jobs=[_status(line) for line in board.lines],
    )


def _status(line: Line) -> JobStatus:
    forecast = line.forecast
    reasons = [*([line.stall.why] if line.stall is not None else []), *([line.failure] if line.failure else [])]
    return JobStatus(
        id=line.id,
        name=line.name,
        state=line.state,
        health=_WORDS[line.health],
        reasons=[*reasons, *line.weak] if line.health not in ("good", "idle") else [],
        silent_since=line.stall.since if line.stall is not None else None,
        forecast=Forecast(
            warm=forecast.warm,
            host=forecast.host or None,
            estimate_s=forecast.estimate_s,
            basis=forecast.basis,
            ready_in_s=forecast.ready_in_s,
        )
        if forecast is not None
        else None,
    )
