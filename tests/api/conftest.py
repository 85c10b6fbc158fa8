"""A control plane for the tests of one module, with a scripted agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.store.database import Database
from scripted import ScriptedAgent, placed
from serving import Served, served


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A replica without a reconciler."""
    with served(tmp_path_factory.mktemp("api")) as service:
        yield service


@pytest.fixture
def admin(api: Served) -> Iterator[httpx.Client]:
    with api.client() as client:
        yield client


@pytest.fixture
def agent(api: Served, name: str) -> Iterator[ScriptedAgent]:
    with ScriptedAgent(api, f"host-{name}") as made:
        made.register()
        yield made


Write = Callable[[Callable[[AsyncSession], Coroutine[Any, Any, Any]]], Any]


@pytest.fixture
def write(api: Served) -> Write:
    """Writes to the store as another replica would: with a connection and a notifier of its own."""

    def run(change: Callable[[AsyncSession], Coroutine[Any, Any, Any]]) -> Any:
        async def transaction() -> Any:
            database = Database(api.settings.database)
            try:
                async with database.transaction() as session:
                    return await change(session)
            finally:
                await database.close()

        return asyncio.run(transaction())

    return run


@pytest.fixture
def place(api: Served) -> Callable[[str, str], str]:
    """Places a job on an agent, as the reconciler would; the id of the run."""
    return lambda job, agent: asyncio.run(placed(api, job, agent))
