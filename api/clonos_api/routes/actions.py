"""REST routes for actions on a job: start, stop, restart, move, upgrade, roll back, resolve, cancel, verify.

Each responds 202 with an operation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Depends, Response
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.jobs import (
    DesiredState,
    JobState,
    MoveRequest,
    ResolveRequest,
    RollbackRequest,
    StartFrom,
    StartRequest,
    StopMode,
    StopRequest,
    UpgradeRequest,
)
from clonos.resources.service import Operation
from clonos.resources.verification import VerifyRequest
from clonos_api.admission import job_changes, planned_moves, start_points
from clonos_api.auth import Principal
from clonos_api.guards.idempotency import Once, OnceDep
from clonos_api.http.bodies import IfMatch, check_version, matched_version
from clonos_api.http.checked_json import CheckedRoute
from clonos_api.reconcile.deadlines import CANCEL_S, CLAIM_S, FORCE_S, SAVEPOINT_S, STOP_MARGIN_S
from clonos_api.replica import DatabaseDep, SettingsDep
from clonos_api.routes.access import API, Operator, OwnJob, changing
from clonos_api.routes.documented import LOCATION, problems
from clonos_api.routes.operations import accepted
from clonos_api.store import jobs, operations, verifications
from clonos_api.store.columns import OperationArguments
from clonos_api.store.db.database import Database
from clonos_api.store.tables import JobRow, OperationRow

router = APIRouter(route_class=CheckedRoute, prefix=f"{API}/jobs", tags=["actions"])

# Longer than the deadlines of the job states: those report a more specific failure. A start waits for one attempt.
_MARGIN_S: Final = 30.0
_START_S: Final = CLAIM_S + _MARGIN_S
_STOP_MARGIN_S: Final = STOP_MARGIN_S + FORCE_S + _MARGIN_S
_SAVEPOINT_S: Final = SAVEPOINT_S + 300.0
_CANCEL_S: Final = CANCEL_S + _MARGIN_S
# A rollback does not start a job that was not started, or that has worked through its input.
_NOT_STARTED: Final = (JobState.CREATED, JobState.FINISHED)
_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {**LOCATION, **problems(412)}
_ANSWERS: Final[dict[str, Any]] = {"status_code": 202, "response_model": Operation, "responses": _RESPONSES}


@dataclass(frozen=True)
class Action:
    """A change of one job that responds with an operation."""

    caller: Principal
    job: JobRow
    database: Database
    once: Once
    if_match: str | None

    async def begin(self, begin: Callable[[AsyncSession, JobRow], Awaitable[OperationRow]]) -> Response:
        """Begin an operation on the job with `begin`, in one transaction with the stored response."""

        async def change(session: AsyncSession) -> Response:
            row = await jobs.get(session, self.job.id)
            check_version(self.if_match, row.version)
            return await accepted(session, await begin(session, row), self.once)

        return await changing(self.database, self.caller.actor, change)

    async def desire(self, kind: str, desired: DesiredState, timeout_s: float, **fields: Any) -> Response:
        """Begin the operation `kind` with a new desired state; `fields` are further arguments of `jobs.desire`."""

        async def begin(session: AsyncSession, row: JobRow) -> OperationRow:
            if isinstance(point := fields.get("start_from"), StartFrom):
                await start_points.check(session, self.caller, row.name, point, row)
            arguments = OperationArguments(stop=fields.get("stop"))
            operation = await operations.begin(
                session, kind, job=row.id, arguments=arguments, timeout_s=timeout_s, by=self.caller.subject
            )
            await jobs.desire(session, row, desired, **fields)
            return operation

        return await self.begin(begin)


async def _action(
    caller: Operator, once: OnceDep, job: OwnJob, database: DatabaseDep, if_match: IfMatch = None
) -> Action:
    return Action(caller, job, database, once, if_match)


ActionDep = Annotated[Action, Depends(_action)]


@router.post("/{job}/start", **_ANSWERS)
async def start_job(
    action: ActionDep,
    body: Annotated[StartRequest | None, Body()] = None,
) -> Response:
    """Start a job from its last epoch or from an older point. A running job is left unchanged."""
    request = body or StartRequest()
    return await action.desire("start", DesiredState.RUNNING, _START_S, start_from=request.point, adopt=request.adopt)


@router.post("/{job}/stop", **_ANSWERS)
async def stop_job(
    action: ActionDep,
    body: Annotated[StopRequest | None, Body()] = None,
) -> Response:
    """Stop a job. It can be started again from its last epoch."""
    stop = body or StopRequest()
    longest = stop.timeout_s + _STOP_MARGIN_S + (_SAVEPOINT_S if stop.mode is StopMode.CHECKPOINT else 0)
    return await action.desire("stop", DesiredState.STOPPED, longest, stop=stop)


@router.post("/{job}/restart", **_ANSWERS)
async def restart_job(
    action: ActionDep,
    body: Annotated[StopRequest | None, Body()] = None,
) -> Response:
    """Stop a job if it is running, and start it with its newest specification and code."""
    stop = body or StopRequest()
    longest = stop.timeout_s + _STOP_MARGIN_S + _START_S
    return await action.desire("restart", DesiredState.RUNNING, longest, stop=stop, restart=True)


@router.post("/{job}/move", **_ANSWERS)
async def move_job(
    action: ActionDep,
    settings: SettingsDep,
    body: Annotated[MoveRequest | None, Body()] = None,
) -> Response:
    """Move a running job to another host: a standby is prepared there and takes over while the driver runs."""
    request = body or MoveRequest()

    async def begin(session: AsyncSession, row: JobRow) -> OperationRow:
        target = await planned_moves.to_host(session, row, request.to, settings)
        return await planned_moves.begin(session, row, "move", request.timeout_s, action.caller.subject, to=target)

    return await action.begin(begin)


@router.post("/{job}/upgrade", **{**_ANSWERS, "responses": {**_RESPONSES, **problems(428)}})
async def upgrade_job(
    action: ActionDep,
    settings: SettingsDep,
    body: Annotated[UpgradeRequest | None, Body()] = None,
) -> Response:
    """Upgrade a running job to its newest specification and code through a standby; roll back if it fails at once.

    The body may have the new specification and code; a refused upgrade does not store them.
    """
    request = body or UpgradeRequest()
    job_changes.check(request)

    async def begin(session: AsyncSession, row: JobRow) -> OperationRow:
        if request.spec is not None or request.artifact is not None:
            version = matched_version(action.if_match, row.version)
            row = await job_changes.store(session, action.caller, row, request, settings, version=version)
        return await planned_moves.begin(session, row, "upgrade", request.timeout_s, action.caller.subject)

    return await action.begin(begin)


@router.post("/{job}/rollback", **_ANSWERS)
async def roll_back_job(
    action: ActionDep,
    settings: SettingsDep,
    body: Annotated[RollbackRequest | None, Body()] = None,
) -> Response:
    """Return to another version of a job: of a running job by an upgrade to it, of one that failed by a start.

    A stopped job only changes its version.
    """
    request = body or RollbackRequest()

    async def begin(session: AsyncSession, row: JobRow) -> OperationRow:
        row = await job_changes.roll_back(session, action.caller, row, request.version, settings)
        wanted = row.desired_state == DesiredState.RUNNING and row.state not in _NOT_STARTED
        if wanted and row.state == JobState.RUNNING:
            return await planned_moves.begin(session, row, "upgrade", request.timeout_s, action.caller.subject)
        operation = await operations.begin(
            session,
            "rollback",
            job=row.id,
            arguments=OperationArguments(version=row.version),
            timeout_s=_START_S,
            by=action.caller.subject,
        )
        if not wanted:
            return await operations.complete(session, operation, {"version": row.version})
        await jobs.desire(session, row, DesiredState.RUNNING, restart=row.state != JobState.FAILED)
        return operation

    return await action.begin(begin)


@router.post("/{job}/resolve", **_ANSWERS)
async def resolve_job(action: ActionDep, body: ResolveRequest) -> Response:
    """Decide about an epoch in doubt that stopped a job, and start the job. The audit log records the decision."""

    async def begin(session: AsyncSession, row: JobRow) -> OperationRow:
        operation = await operations.begin(session, "resolve", job=row.id, timeout_s=_START_S, by=action.caller.subject)
        await jobs.resolve(session, row, body)
        return operation

    return await action.begin(begin)


@router.post("/{job}/cancel", **_ANSWERS)
async def cancel_job(action: ActionDep) -> Response:
    """Cancel a job permanently: its driver is killed, and the job cannot be started again."""
    return await action.desire("cancel", DesiredState.CANCELED, _CANCEL_S)


@router.post("/{job}/verify", **_ANSWERS)
async def verify_job(
    action: ActionDep,
    body: Annotated[VerifyRequest | None, Body()] = None,
) -> Response:
    """Compare what readers see of a job's output with the markers in its causal log, on a host.

    The result of the operation is a `Verification`.
    """
    request = body or VerifyRequest()

    async def begin(session: AsyncSession, row: JobRow) -> OperationRow:
        return await verifications.begin(session, row, request, by=action.caller.subject)

    return await action.begin(begin)
