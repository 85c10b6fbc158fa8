"""Operations: what takes a while. Who begins one gets 202 and where to look."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from clonos.resources.base import Page
from clonos.resources.service import Operation
from clonos_api import views
from clonos_api.bodies import JSON, Limit, StartingAfter, page
from clonos_api.documented import problems
from clonos_api.routes.access import API, IdPath, Viewer
from clonos_api.services import Store
from clonos_api.store import jobs, operations

router = APIRouter(prefix=f"{API}/operations", tags=["operations"])


def where(operation: Operation) -> dict[str, str]:
    """The headers that say where an operation is."""
    return {"Location": f"{API}/operations/{operation.id}"}


def accepted(operation: Operation) -> Response:
    """The answer to who began it."""
    return Response(operation.model_dump_json(), 202, where(operation), JSON)


@router.get("", responses=problems(404))
async def list_operations(
    caller: Viewer,
    store: Store,
    job: Annotated[str | None, Query(max_length=100, description="Id or name of a job.")] = None,
    state: Literal["IN_PROGRESS", "COMPLETED", "FAILED"] | None = None,
    limit: Limit = 50,
    starting_after: StartingAfter = None,
) -> Page[Operation]:
    """List operations, newest first."""
    async with store.reading() as session:
        of = None if job is None else (await jobs.get(session, job, deleted=True)).id
        found = await operations.page(session, job=of, state=state, limit=limit, starting_after=starting_after)
    return page(map(views.operation, found.rows), found.next)


@router.get("/{operation}")
async def get_operation(operation: IdPath, caller: Viewer, store: Store) -> Operation:
    """One operation."""
    async with store.reading() as session:
        return views.operation(await operations.get(session, operation))
