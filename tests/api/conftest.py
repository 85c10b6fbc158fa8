"""A control plane for the tests of one module, with a scripted agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.hosts import RunOrder
from clonos.spec import JobSpec
from clonos_api.store import agents, jobs, runs
from clonos_api.store.database import Database
from clonos_api.store.rows import new_id
from scripted import ScriptedAgent
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
def place(write: Write) -> Callable[[str, str], str]:
    """Places a job on an agent, as the reconciler would; the id of the run."""

    def run(job: str, agent: str) -> str:
        async def change(session: AsyncSession) -> str:
            row, host = await jobs.get(session, job), await agents.get(session, agent)
            order = RunOrder(
                run=new_id(),
                job=row.id,
                name=row.name,
                version=row.version,
                spec=JobSpec.model_validate(row.spec),
                artifact=row.artifact,
                goal="RUN",
            )
            made = await runs.create(session, row, host, order)
            await jobs.change(session, row, run=made.id)
            return made.id

        return str(write(change))

    return run
