"""REST routes for operations: long-running requests, which respond 202 with the URL of their operation."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.base import Page
from clonos.resources.service import Operation
from clonos_api.guards.idempotency import Once
from clonos_api.http.checked_json import CheckedRoute
from clonos_api.routes.access import API, IdPath, JobQuery, ReadingDep, Viewer, WindowDep
from clonos_api.routes.documented import problems
from clonos_api.store import jobs, operations, views
from clonos_api.store.tables import OperationRow

router = APIRouter(route_class=CheckedRoute, prefix=f"{API}/operations", tags=["operations"])


async def accepted(session: AsyncSession, row: OperationRow, once: Once | None = None) -> Response:
    """Return the 202 response for an operation, stored with the request's idempotency key `once`, if it has one."""
    resource = views.resource(Operation, row)
    headers = {"Location": f"{API}/operations/{row.id}"}
    return await (once or Once(None)).answer(session, 202, resource, headers=headers)


@router.get("", responses=problems(404))
async def list_operations(
    caller: Viewer,
    session: ReadingDep,
    window: WindowDep,
    job: JobQuery = None,
    state: Literal["IN_PROGRESS", "COMPLETED", "FAILED"] | None = None,
) -> Page[Operation]:
    """List operations (long-running requests), newest first."""
    of = None if job is None else (await jobs.get(session, job, deleted=True)).id
    return views.page(Operation, await operations.page(session, window, job=of, state=state))


@router.get("/{operation}")
async def get_operation(operation: IdPath, caller: Viewer, session: ReadingDep) -> Operation:
    """Get one operation: whether it is in progress, completed or failed."""
    return views.resource(Operation, await operations.get(session, operation))
