"""The application: its routes, what runs besides them, and how both end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Final

import structlog
from fastapi import FastAPI

from clonos.settings import Settings
from clonos_api import dashboard, documented, guards, idempotency, problems, recovery_traces
from clonos_api.auth import declared
from clonos_api.routes import (
    actions,
    agents,
    artifacts,
    connectors,
    events,
    health,
    history,
    hosts,
    jobs,
    logs,
    metrics,
    operations,
    savepoints,
    tokens,
)
from clonos_api.routes.access import API
from clonos_api.services import Services
from clonos_api.settings import ApiSettings

_ENDING_S: Final = 1.0
_log = structlog.get_logger("clonos.api")

_ROUTERS: Final = (
    agents.router,  # first, because routes are looked through in order, and agents ask most
    artifacts.router,
    jobs.router,
    actions.router,
    savepoints.checkpoints_of_jobs,
    savepoints.savepoints_of_jobs,
    savepoints.router,
    history.router,
    logs.router,
    operations.router,
    events.router,
    hosts.router,
    hosts.standby_router,
    connectors.router,
    tokens.router,
    tokens.audit_router,
    metrics.router,
    health.open_router,
    health.router,
)


def create_app(settings: ApiSettings | None = None) -> FastAPI:
    """The application of one replica. It opens nothing before it is started.

    Args:
        settings: Default: from the environment.
    """
    settings = settings or ApiSettings()
    app = FastAPI(
        title="Clonos",
        summary="The control plane: submit, run and steer exactly-once jobs.",
        version=version("clonos"),
        lifespan=_lifespan,
        openapi_url=f"{API}/openapi.json",
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
        redirect_slashes=False,
    )
    services = Services.of(settings)
    app.state.services = services
    app.state.database = services.database
    app.state.known_agents = services.known_agents
    problems.install(app)
    idempotency.install(app)
    guards.install(
        app,
        guards.GuardSettings.of(settings),
        open_paths=dashboard.OPEN,
        open_files=dashboard.FILES,
        sign_in=dashboard.SIGN_IN,
    )
    for router in _ROUTERS:
        app.include_router(router)
    dashboard.install(app)
    declared.check_declared(app, open_paths=dashboard.OPEN_ROUTES)
    app.openapi = lambda: documented.describe(app)  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    await services.prepare()
    services.start("notifier", lambda: services.database.notifier.watch(services.database))
    services.start("feed", services.feed.run)
    services.start("logs", services.log_watch.run)
    services.start("schema", services.watch_schema)
    traces = Settings().traces
    services.start("traces", lambda: recovery_traces.run(services, traces))
    if services.settings.reconcile:
        services.start("reconciler", services.reconcile)
    try:
        yield
    finally:
        services.end_waits()
        await _ended(services)
        await services.database.close()


async def _ended(services: Services) -> None:
    """End what runs besides the requests; whoever leads gives the lease up, but nobody is waited for long."""
    _, late = await asyncio.wait(services.tasks.values(), timeout=_ENDING_S)
    for task in late:
        _log.warning("A part of the service did not end in time", part=task.get_name())
