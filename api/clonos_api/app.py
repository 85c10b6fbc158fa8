"""Creates the FastAPI application of one replica: its routes and background tasks, and their shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Final

import structlog
from fastapi import Depends, FastAPI

from clonos.settings import Settings
from clonos_api import dashboard, guards
from clonos_api.alerts.sending import Sender
from clonos_api.auth import declared
from clonos_api.http import problems
from clonos_api.http.query_parameters import refuse_undeclared
from clonos_api.metrics import recovery_traces
from clonos_api.replica import Replica
from clonos_api.routes import (
    actions,
    artifacts,
    clusters,
    connectors,
    documented,
    events,
    health,
    history,
    host_agents,
    hosts,
    jobs,
    logs,
    operations,
    savepoints,
    status,
    tokens,
)
from clonos_api.routes.access import API
from clonos_api.settings import ApiSettings

_ENDING_S: Final = 1.0
_log = structlog.get_logger("clonos.api")

_ROUTERS: Final = (
    host_agents.router,  # first: routes are matched in order, and agents send most requests
    artifacts.router,
    jobs.router,
    actions.router,
    savepoints.checkpoints_of_jobs,
    savepoints.savepoints_of_jobs,
    savepoints.router,
    history.router,
    history.of_all_jobs,
    logs.router,
    operations.router,
    events.router,
    hosts.router,
    hosts.standby_router,
    clusters.router,
    connectors.router,
    tokens.router,
    tokens.audit_router,
    tokens.session_router,
    tokens.code_router,
    health.router,
    status.router,
)
# Outside of `/api/v1`, for Prometheus and load balancers.
_ROOT_ROUTERS: Final = (health.metrics_router, health.open_router)


def create_app(settings: ApiSettings | None = None) -> FastAPI:
    """Create the application of one replica. It opens no connection before its start."""
    settings = settings or ApiSettings()
    app = FastAPI(
        title="Clonos",
        summary="The control plane: submit, run and steer exactly-once jobs.",
        version=version("clonos"),
        lifespan=_lifespan,
        openapi_url=f"{API}/openapi.json",
        docs_url=None,  # its page loads scripts from other origins
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
        redirect_slashes=False,
    )
    replica = Replica.of(settings)
    app.state.replica = replica
    app.state.database = replica.database
    app.state.known_agents = replica.known_agents
    app.state.registry = replica.registry
    problems.install(app)
    guards.install(app, settings, open_paths=dashboard.OPEN, open_files=dashboard.FILES, sign_in=dashboard.SIGN_IN)
    for router in _ROUTERS:
        app.include_router(router, dependencies=[Depends(refuse_undeclared)])
    for router in _ROOT_ROUTERS:
        app.include_router(router)
    dashboard.install(app)
    declared.check_declared(app, open_paths=dashboard.OPEN_ROUTES)
    app.openapi = lambda: documented.describe(app)  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    replica: Replica = app.state.replica
    await replica.prepare()
    replica.start("notifier", lambda: replica.database.watch_commits())
    replica.start("disk", lambda: replica.database.write_to_disk())
    replica.start("feed", replica.feed.run)
    replica.start("logs", replica.log_watch.run)
    replica.start("schema", replica.watch_schema)
    traces = Settings().traces
    replica.start(
        "traces", lambda: recovery_traces.run(replica.feed, replica.database, replica.settings.replica, traces)
    )
    if replica.settings.webhooks:
        sender = Sender(replica.database, replica.boards, replica.settings, replica.registry)
        replica.start("webhooks", sender.run)
    if replica.settings.reconcile:
        replica.start("reconciler", replica.reconcile)
    try:
        yield
    finally:
        replica.end_waits()
        await _ended(replica)
        await replica.database.close()


async def _ended(replica: Replica) -> None:
    """End the background tasks; the leader releases its lease. Waits at most `_ENDING_S`."""
    _, late = await asyncio.wait(replica.tasks.values(), timeout=_ENDING_S)
    for task in late:
        _log.warning("A background task did not end in time", part=task.get_name())
