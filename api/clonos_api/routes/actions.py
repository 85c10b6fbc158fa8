"""REST routes for actions on a job: start, stop, restart, move, upgrade, resolve, cancel.

Each responds 202 with an operation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Response
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.jobs import (
    DesiredState,
    MoveRequest,
    ResolveRequest,
    StartFrom,
    StopMode,
    StopRequest,
    UpgradeRequest,
)
from clonos.resources.service import Operation
from clonos_api.admission import planned_moves, start_points
from clonos_api.guards.idempotency import Once, OnceDep
from clonos_api.http.checked_json import CheckedRoute
from clonos_api.replica import DatabaseDep, SettingsDep
from clonos_api.routes.access import API, Operator, OwnJob, changing
from clonos_api.routes.documented import LOCATION
from clonos_api.routes.operations import accepted
from clonos_api.store import jobs, operations
from clonos_api.store.tables import JobRow, OperationRow

router = APIRouter(route_class=CheckedRoute, prefix=f"{API}/jobs", tags=["actions"])

# Longer than the deadlines of the job states: those report a more specific failure.
_START_S: Final = 150.0
_STOP_MARGIN_S: Final = 60.0
_SAVEPOINT_S: Final = 600.0
_CANCEL_S: Final = 90.0
_ANSWERS: Final[dict[str, Any]] = {"status_code": 202, "response_model": Operation, "responses": LOCATION}


@router.post("/{job}/start", **_ANSWERS)
async def start_job(
    caller: Operator,
    job: OwnJob,
    database: DatabaseDep,
    once: OnceDep,
    body: Annotated[StartFrom | None, Body()] = None,
) -> Response:
    """Start a job from its last epoch or from an older point. A running job is left unchanged."""
    return await _desire(database, once, caller, job, "start", DesiredState.RUNNING, _START_S, start_from=body)


@router.post("/{job}/stop", **_ANSWERS)
async def stop_job(
    caller: Operator,
    job: OwnJob,
    database: DatabaseDep,
    once: OnceDep,
    body: Annotated[StopRequest | None, Body()] = None,
) -> Response:
    """Stop a job. It can be started again from its last epoch."""
    stop = body or StopRequest()
    longest = stop.timeout_s + _STOP_MARGIN_S + (_SAVEPOINT_S if stop.mode is StopMode.CHECKPOINT else 0)
    return await _desire(database, once, caller, job, "stop", DesiredState.STOPPED, longest, stop=stop)


@router.post("/{job}/restart", **_ANSWERS)
async def restart_job(
    caller: Operator,
    job: OwnJob,
    database: DatabaseDep,
    once: OnceDep,
    body: Annotated[StopRequest | None, Body()] = None,
) -> Response:
    """Stop a job if it is running, and start it with its newest specification and code."""
    stop = body or StopRequest()
    longest = stop.timeout_s + _STOP_MARGIN_S + _START_S
    return await _desire(database, once, caller, job, "restart", DesiredState.RUNNING, longest, stop=stop, restart=True)


@router.post("/{job}/move", **_ANSWERS)
async def move_job(
    caller: Operator,
    job: OwnJob,
    database: DatabaseDep,
    settings: SettingsDep,
    once: OnceDep,
    body: Annotated[MoveRequest | None, Body()] = None,
) -> Response:
    """Move a running job to another host: a standby is prepared there and takes over while the driver runs."""
    request = body or MoveRequest()

    async def begin(session: AsyncSession, row: JobRow) -> OperationRow:
        target = await planned_moves.to_host(session, row, request.to, settings)
        return await planned_moves.begin(session, row, "move", request.timeout_s, caller.subject, to=target)

    return await _begin(database, once, caller, job, begin)


@router.post("/{job}/upgrade", **_ANSWERS)
async def upgrade_job(
    caller: Operator,
    job: OwnJob,
    database: DatabaseDep,
    once: OnceDep,
    body: Annotated[UpgradeRequest | None, Body()] = None,
) -> Response:
    """Upgrade a running job to its newest specification and code through a standby; roll back if it fails at once."""
    request = body or UpgradeRequest()

    async def begin(session: AsyncSession, row: JobRow) -> OperationRow:
        return await planned_moves.begin(session, row, "upgrade", request.timeout_s, caller.subject)

    return await _begin(database, once, caller, job, begin)


@router.post("/{job}/resolve", **_ANSWERS)
async def resolve_job(
    caller: Operator, job: OwnJob, database: DatabaseDep, once: OnceDep, body: ResolveRequest
) -> Response:
    """Decide about an epoch in doubt that stopped a job, and start the job. The audit log records the decision."""

    async def begin(session: AsyncSession, row: JobRow) -> OperationRow:
        arguments = {"resolution": body.model_dump(mode="json")}
        operation = await operations.begin(
            session, "resolve", job=row.id, arguments=arguments, timeout_s=_START_S, by=caller.subject
        )
        await jobs.resolve(session, row, body)
        return operation

    return await _begin(database, once, caller, job, begin)


@router.post("/{job}/cancel", **_ANSWERS)
async def cancel_job(caller: Operator, job: OwnJob, database: DatabaseDep, once: OnceDep) -> Response:
    """Cancel a job permanently: its driver is killed, and the job cannot be started again."""
    return await _desire(database, once, caller, job, "cancel", DesiredState.CANCELED, _CANCEL_S)


async def _begin(
    database: DatabaseDep,
    once: Once,
    caller: Operator,
    job: JobRow,
    begin: Callable[[AsyncSession, JobRow], Awaitable[OperationRow]],
) -> Response:
    async def change(session: AsyncSession) -> Response:
        return await accepted(session, await begin(session, await jobs.get(session, job.id)), once)

    return await changing(database, caller.actor, change)


async def _desire(
    database: DatabaseDep,
    once: Once,
    caller: Operator,
    job: JobRow,
    kind: str,
    desired: DesiredState,
    timeout_s: float,
    **fields: Any,
) -> Response:
    async def change(session: AsyncSession) -> Response:
        row = await jobs.get(session, job.id)
        if isinstance(point := fields.get("start_from"), StartFrom):
            await start_points.check(session, caller, row.name, point, row)
        arguments = {
            name: value.model_dump(mode="json") for name, value in fields.items() if hasattr(value, "model_dump")
        }
        operation = await operations.begin(
            session, kind, job=row.id, arguments=arguments, timeout_s=timeout_s, by=caller.subject
        )
        await jobs.desire(session, row, desired, **fields)
        return await accepted(session, operation, once)

    return await changing(database, caller.actor, change)
