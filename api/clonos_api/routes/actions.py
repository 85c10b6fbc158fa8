"""What one can do to a job. Each answers 202 with an operation, which the reconciler ends, if only at its deadline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Response
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.jobs import DesiredState, MoveRequest, StartFrom, StopMode, StopRequest, UpgradeRequest
from clonos.resources.service import Operation
from clonos_api import planned_moves, start_points, views
from clonos_api.documented import LOCATION
from clonos_api.idempotency import Once, idempotent
from clonos_api.routes.access import API, Operator, OwnJob, changing
from clonos_api.routes.operations import where
from clonos_api.services import Settings, Store
from clonos_api.store import jobs, operations
from clonos_api.store.tables import JobRow, OperationRow

router = APIRouter(prefix=f"{API}/jobs", tags=["actions"])

# Longer than the states' own deadlines, so that these say what went wrong.
_START_S: Final = 150.0
_STOP_MARGIN_S: Final = 60.0
_SAVEPOINT_S: Final = 600.0
_CANCEL_S: Final = 90.0
_ANSWERS: Final[dict[str, Any]] = {"status_code": 202, "response_model": Operation, "responses": LOCATION}


@router.post("/{job}/start", **_ANSWERS)
async def start_job(
    caller: Operator,
    job: OwnJob,
    store: Store,
    once: Annotated[Once, idempotent()],
    body: Annotated[StartFrom | None, Body()] = None,
) -> Response:
    """Start a job, where it ended or from an older point. One that runs already goes on."""
    return await _ask(store, once, caller, job, "start", DesiredState.RUNNING, _START_S, start_from=body)


@router.post("/{job}/stop", **_ANSWERS)
async def stop_job(
    caller: Operator,
    job: OwnJob,
    store: Store,
    once: Annotated[Once, idempotent()],
    body: Annotated[StopRequest | None, Body()] = None,
) -> Response:
    """Stop a job; it can be started again where it ended."""
    stop = body or StopRequest()
    longest = stop.timeout_s + _STOP_MARGIN_S + (_SAVEPOINT_S if stop.mode is StopMode.CHECKPOINT else 0)
    return await _ask(store, once, caller, job, "stop", DesiredState.STOPPED, longest, stop=stop)


@router.post("/{job}/restart", **_ANSWERS)
async def restart_job(
    caller: Operator,
    job: OwnJob,
    store: Store,
    once: Annotated[Once, idempotent()],
    body: Annotated[StopRequest | None, Body()] = None,
) -> Response:
    """Stop a job if it runs, and start it with its newest specification and code."""
    stop = body or StopRequest()
    longest = stop.timeout_s + _STOP_MARGIN_S + _START_S
    return await _ask(store, once, caller, job, "restart", DesiredState.RUNNING, longest, stop=stop, restart=True)


@router.post("/{job}/move", **_ANSWERS)
async def move_job(
    caller: Operator,
    job: OwnJob,
    store: Store,
    settings: Settings,
    once: Annotated[Once, idempotent()],
    body: Annotated[MoveRequest | None, Body()] = None,
) -> Response:
    """Move a job that runs to another host: a standby is made ready there, and takes over while the driver works."""
    wanted = body or MoveRequest()

    async def begin(session: AsyncSession, row: JobRow) -> OperationRow:
        where_to = await planned_moves.to_host(session, row, wanted.to, settings)
        return await planned_moves.begin(session, row, "move", wanted.timeout_s, caller.subject, to=where_to)

    return await _plan(store, once, caller, job, begin)


@router.post("/{job}/upgrade", **_ANSWERS)
async def upgrade_job(
    caller: Operator,
    job: OwnJob,
    store: Store,
    once: Annotated[Once, idempotent()],
    body: Annotated[UpgradeRequest | None, Body()] = None,
) -> Response:
    """Bring a job that runs to its newest specification and code, through a standby; back if that fails at once."""
    wanted = body or UpgradeRequest()

    async def begin(session: AsyncSession, row: JobRow) -> OperationRow:
        return await planned_moves.begin(session, row, "upgrade", wanted.timeout_s, caller.subject)

    return await _plan(store, once, caller, job, begin)


@router.post("/{job}/cancel", **_ANSWERS)
async def cancel_job(caller: Operator, job: OwnJob, store: Store, once: Annotated[Once, idempotent()]) -> Response:
    """End a job for good."""
    return await _ask(store, once, caller, job, "cancel", DesiredState.CANCELED, _CANCEL_S)


async def _plan(
    store: Store,
    once: Once,
    caller: Operator,
    job: JobRow,
    begin: Callable[[AsyncSession, JobRow], Awaitable[OperationRow]],
) -> Response:
    async def change(session: AsyncSession) -> Response:
        shown = views.operation(await begin(session, await jobs.get(session, job.id)))
        return await once.answer(session, 202, shown, headers=where(shown))

    return await changing(store, caller.actor, change)


async def _ask(
    store: Store,
    once: Once,
    caller: Operator,
    job: JobRow,
    kind: str,
    wanted: DesiredState,
    timeout_s: float,
    **how: Any,
) -> Response:
    async def change(session: AsyncSession) -> Response:
        row = await jobs.get(session, job.id)
        if isinstance(point := how.get("start_from"), StartFrom):
            await start_points.check(session, caller, row.name, point, row)
        arguments = {name: one.model_dump(mode="json") for name, one in how.items() if hasattr(one, "model_dump")}
        begun = await operations.begin(
            session, kind, job=row.id, arguments=arguments, timeout_s=timeout_s, by=caller.subject
        )
        await jobs.desire(session, row, wanted, **how)
        shown = views.operation(begun)
        return await once.answer(session, 202, shown, headers=where(shown))

    return await changing(store, caller.actor, change)
