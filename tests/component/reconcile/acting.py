"""Agents and users for the real store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from clonos.jobs.spec import Standbys
from clonos.resources.jobs import DesiredState, StartFrom, StopRequest
from clonos.testing.harness import Deadline
from clonos_api.reconcile import loop
from clonos_api.routes.access import changing
from clonos_api.store import events, jobs, operations, runs
from clonos_api.store.columns import OperationArguments
from clonos_api.store.db.database import Database
from clonos_api.store.tables import JobRow, OperationRow, RunRow
from support.agents import FakeAgent, agent_routes, client_of
from support.stored import spec, store_artifact

PATIENCE_S = 60.0


@dataclass
class Placing:
    """The settings that the reconciler reads."""

    home: Path
    shared_checkpoints: str | None = None
    replica: str = "replica"
    host_lease_s: float = 2.0

    @property
    def savepoint_location(self) -> str:
        return str(self.home / "savepoints")


class Users:
    """Requests and queries of users."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def submit(self, name: str = "words", *, start: bool = True, checkpoint: str | None = None,
                     standbys: int = 0, **labels: str) -> JobRow:  # fmt: skip
        made = spec(name, **labels)
        changed = {"checkpoint": checkpoint, "standby": Standbys(replicas=standbys)}
        made = made.model_copy(update={"spec": made.spec.model_copy(update=changed)})
        async with self.database.transaction() as session:
            sha = await store_artifact(session)
            return await jobs.create(session, made, sha, created_by="ada", start=start)

    async def ask(
        self,
        kind: str,
        name: str = "words",
        *,
        stop: StopRequest | None = None,
        start_from: StartFrom | None = None,
        timeout_s: float = 60.0,
    ) -> str:
        wanted = {"stop": DesiredState.STOPPED, "cancel": DesiredState.CANCELED, "delete": DesiredState.CANCELED}

        async def change(session: AsyncSession) -> str:
            row = await jobs.get(session, name)
            arguments = OperationArguments(stop=stop)
            made = await operations.begin(session, kind, job=row.id, arguments=arguments, timeout_s=timeout_s, by="ada")
            await jobs.desire(
                session,
                row,
                wanted.get(kind, DesiredState.RUNNING),
                stop=stop,
                start_from=start_from,
                restart=kind == "restart",
            )
            return made.id

        return await changing(self.database, None, change)

    async def job(self, name: str = "words") -> JobRow:
        async with self.database.reading() as session:
            return await jobs.get(session, name)

    async def operation(self, operation: str) -> OperationRow:
        async with self.database.reading() as session:
            return await operations.get(session, operation)

    async def runs(self, name: str = "words") -> list[RunRow]:
        async with self.database.reading() as session:
            row = await jobs.get(session, name)
            return sorted((await runs.of_job(session, row.id)).rows, key=lambda run: run.id)

    async def happened(self, *types: str) -> list[Any]:
        async with self.database.reading() as session:
            return await events.after(session, 0, types=types)

    async def until(self, *states: str, name: str = "words", timeout_s: float = PATIENCE_S) -> JobRow:
        async def there() -> JobRow | None:
            row = await self.job(name)
            return row if row.state in states else None

        return await eventually(there, f"{name} is {states}", timeout_s=timeout_s)  # type: ignore[no-any-return]

    async def ended(self, operation: str, timeout_s: float = PATIENCE_S) -> OperationRow:
        async def there() -> OperationRow | None:
            row = await self.operation(operation)
            return row if row.state != "IN_PROGRESS" else None

        return await eventually(there, f"operation {operation} ends", timeout_s=timeout_s)  # type: ignore[no-any-return]


async def eventually(condition: Callable[[], Awaitable[Any]], what: str, *, timeout_s: float = PATIENCE_S) -> Any:
    """Polls until `condition` returns a true value."""
    deadline = Deadline(timeout_s)
    while True:
        answer = await condition()
        if answer:
            return answer
        assert not deadline.passed(), f"{what}: not within {deadline.waited_s:.0f} s"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def reconciling(database: Database, placing: Placing) -> AsyncIterator[None]:
    """Runs a reconciler."""
    task = asyncio.create_task(loop.run(database, placing))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def running_hosts(
    database: Database,
    *names: str,
    slots: int = 2,
    lease_s: float = 2.0,
    domains: Mapping[str, str] | None = None,
) -> AsyncIterator[dict[str, FakeAgent]]:
    """Runs agents over the routes; another process or this one reconciles."""
    claims: dict[str, int] = {}
    made: dict[str, FakeAgent] = {}
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory()))
        app = agent_routes(database, home, host_lease_s=lease_s, host_heartbeat_s=lease_s / 4)
        works = [database.watch_commits()]
        for name in names:
            client = await stack.enter_async_context(client_of(database, app, name))
            made[name] = FakeAgent(
                client.request, name, claims, slots=slots, heartbeat_s=lease_s / 4, domain=(domains or {}).get(name)
            )
            await made[name].register()
            works.append(made[name].live())
        tasks = [asyncio.create_task(work) for work in works]
        try:
            yield made
        finally:
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result
