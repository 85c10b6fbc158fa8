"""REST routes for the installed sources and sinks."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path
from starlette.concurrency import run_in_threadpool

from clonos.resources.base import Page
from clonos.resources.service import Connector, ValidateRequest, Validation
from clonos_api.admission import connectors, spec_checks
from clonos_api.admission.connectors import Kind
from clonos_api.http.bodies import TEXT
from clonos_api.http.checked_json import CheckedRoute
from clonos_api.routes.access import API, NameWindowDep, Operator, Viewer
from clonos_api.store import views
from clonos_api.store.db import paging

router = APIRouter(route_class=CheckedRoute, prefix=f"{API}/connectors", tags=["connectors"])

NamePath = Annotated[str, Path(min_length=1, max_length=100, pattern=TEXT)]
_KAFKA_OPTIONS: Final = "options"


@router.get("")
async def list_connectors(caller: Viewer, window: NameWindowDep, kind: Kind | None = None) -> Page[Connector]:
    """List installed sources and sinks with their options, by kind and name."""
    plugins = await run_in_threadpool(connectors.installed, kind)
    result = paging.by_name(plugins, lambda plugin: f"{plugin.kind}/{plugin.name}", window)
    return views.listed((plugin.describe() for plugin in result.rows), result.next)


@router.get("/{kind}/{name}")
async def get_connector(kind: Kind, name: NamePath, caller: Viewer) -> Connector:
    """Get one source or sink with its options."""
    return (await run_in_threadpool(connectors.find, kind, name)).describe()


@router.post("/{kind}/{name}/validate")
async def validate_connector(kind: Kind, name: NamePath, body: ValidateRequest, caller: Operator) -> Validation:
    """Check the options of a source or sink without a job: names and types, then the connector's own checks."""
    result = await run_in_threadpool(connectors.find, kind, name)
    further = body.options.get(_KAFKA_OPTIONS)
    if isinstance(further, dict):
        refused = spec_checks.check_kafka_options(
            {str(key): str(value) for key, value in further.items()}, _KAFKA_OPTIONS
        )
        if refused:
            return Validation(valid=False, problems=refused)
    return await run_in_threadpool(result.validate, body.options)
