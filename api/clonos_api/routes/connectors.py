"""The sources and sinks that are installed."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path
from starlette.concurrency import run_in_threadpool

from clonos.resources.base import Page
from clonos.resources.service import Connector, ValidateRequest, Validation
from clonos_api import connectors, spec_guards
from clonos_api.bodies import page
from clonos_api.connectors import Kind
from clonos_api.routes.access import API, Operator, Viewer

router = APIRouter(prefix=f"{API}/connectors", tags=["connectors"])

NamePath = Annotated[str, Path(min_length=1, max_length=100)]
_KAFKA_OPTIONS: Final = "options"


@router.get("")
async def list_connectors(caller: Viewer, kind: Kind | None = None) -> Page[Connector]:
    """All sources and sinks, with their options."""
    found = await run_in_threadpool(connectors.installed, kind)
    return page([one.describe() for one in found], None)


@router.get("/{kind}/{name}")
async def get_connector(kind: Kind, name: NamePath, caller: Viewer) -> Connector:
    """One source or sink, with its options."""
    return (await run_in_threadpool(connectors.find, kind, name)).describe()


@router.post("/{kind}/{name}/validate")
async def validate_connector(kind: Kind, name: NamePath, body: ValidateRequest, caller: Operator) -> Validation:
    """Look at options without a job: their names, their types, and what the connector says of them."""
    found = await run_in_threadpool(connectors.find, kind, name)
    further = body.options.get(_KAFKA_OPTIONS)
    if isinstance(further, dict):
        refused = spec_guards.check_kafka_options(
            {str(key): str(value) for key, value in further.items()}, _KAFKA_OPTIONS
        )
        if refused:
            return Validation(valid=False, problems=refused)
    return await run_in_threadpool(found.validate, body.options)
