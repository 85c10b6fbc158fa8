"""Agents and users for the real store; agents act as `clonos.agent` does, and their drivers are but reports."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import Fenced, StoreAway
from clonos.resources.hosts import AgentRegister, RunOrder, RunReport
from clonos.resources.jobs import DesiredState, Failure, StartFrom, StopMode, StopRequest
from clonos.spec import Standbys
from clonos_api.reconcile import service
from clonos_api.routes.access import changing
from clonos_api.store import agents, epochs, events, jobs, operations, runs, savepoints, tasks
from clonos_api.store.database import Database
from clonos_api.store.tables import JobRow, OperationRow, RunRow
from stored import EventFile, an_artifact, spec, unique

PATIENCE_S = 20.0


@dataclass
class Placing:
    """`clonos_api.reconcile.reading.Settings`."""

    home: Path
    shared_checkpoints: str | None = None
    replica: str | None = None
    agent_lease_s: float = 2.0

    @property
    def savepoint_location(self) -> str:
        return str(self.home / "savepoints")


@dataclass
class Acted:
    """A driver, as its agent knows it."""

    order: RunOrder
    file: EventFile
    told: int = 0
    report: dict[str, Any] = field(default_factory=dict)

    def fail(self, code: int, failure: Failure) -> None:
        self.report |= {"state": "EXITED", "exit_code": code, "failure": failure, "final": True}


class Actor:
    """An agent."""

    # A generation is what the log says; all agents of a test see one log for each job.
    claims: dict[str, int]
    warms = True  # whether standbys get READY

    def __init__(self, database: Database, claims: dict[str, int], name: str, slots: int = 2, lease_s: float = 2.0):
        self.database, self.claims, self.name, self.slots, self.lease_s = database, claims, name, slots, lease_s
        self.instance = unique()
        self.id = ""
        self.drivers: dict[str, Acted] = {}
        self.hidden = False
        self.starts = True  # whether drivers get to claim

    async def register(self) -> None:
        body = AgentRegister(name=self.name, instance=self.instance, slots=self.slots)
        async with self.database.transaction() as session:
            self.id = (await agents.register(session, body, lease_s=self.lease_s)).id

    async def live(self) -> None:
        while True:
            if not self.hidden:
                # The database is away, or somebody was faster: the next one says it again.
                with contextlib.suppress(StoreAway, Fenced):
                    await self.beat()
            await asyncio.sleep(0.1)

    async def beat(self) -> None:
        async with self.database.reading() as session:
            work = await runs.work(session, self.id)
        wanted = {order.run for order in work.runs}
        self.drivers = {run: one for run, one in self.drivers.items() if run in wanted}
        for order in work.runs:
            self._follow(self.drivers.setdefault(order.run, Acted(order, EventFile())), order)
        async with self.database.transaction() as session:
            await runs.report(session, self.id, [RunReport(run=run, **one.report) for run, one in self.drivers.items()])
            await agents.heartbeat(session, self.id, self.instance, agents.Lives(self.lease_s))
        for run, one in self.drivers.items():
            if lines := one.file.lines[one.told :]:
                async with self.database.transaction() as session:
                    await epochs.ingest(session, run, one.file.offset(one.told), lines)
                one.told += len(lines)
        for task in work.tasks:
            async with self.database.transaction() as session:
                row = await tasks.get(session, task.task)
                if await tasks.end(session, row):
                    savepoint = await savepoints.get(session, task.arguments["savepoint"])
                    if task.kind == "savepoint":
                        await savepoints.complete(session, savepoint, epochs={"out": 3}, size_bytes=1)
                    else:
                        await savepoints.remove(session, savepoint)
                    if row.operation:
                        await operations.complete(session, await operations.get(session, row.operation))

    def _follow(self, one: Acted, order: RunOrder) -> None:
        one.order = order
        if one.report.get("final"):
            return
        if order.goal != "RUN":
            killed = order.goal == "GONE" or order.stop_mode is StopMode.FORCE
            one.report |= {"state": "EXITED", "exit_code": -9 if killed else 0, "final": True}
            one.report["driver_state"] = one.report.get("driver_state") if killed else "STOPPED"
        elif order.standby:
            state = "READY" if self.warms else "WARMING"
            one.report = {"state": "RUNNING", "driver_state": state, "attempts": order.attempt_base + 1}
        elif not one.report or one.report.get("driver_state") == "READY":
            one.report = {"state": "STARTING", "attempts": order.attempt_base + 1, "started_at": datetime.now(UTC)}
        elif self.starts and (one.report["state"] == "STARTING" or one.report.get("driver_state") == "READY"):
            generation = self.claims[order.job] = self.claims.get(order.job, 0) + 1
            one.file.start(generation)
            one.file.epoch(generation)
            one.report |= {"state": "RUNNING", "driver_state": "RUNNING", "generation": generation}


class Users:
    """What people ask for, and see."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def submit(self, name: str = "words", *, start: bool = True, checkpoint: str | None = None,
                     standbys: int = 0, **labels: str) -> JobRow:  # fmt: skip
        made = spec(name, **labels)
        changed = {"checkpoint": checkpoint, "standby": Standbys(replicas=standbys)}
        made = made.model_copy(update={"spec": made.spec.model_copy(update=changed)})
        async with self.database.transaction() as session:
            sha = await an_artifact(session)
            return await jobs.create(session, made, sha, owner="ada", start=start)

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
            arguments = {"stop": stop.model_dump(mode="json")} if stop else {}
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
            return sorted((await runs.of_job(session, row.id)).rows, key=lambda one: one.id)

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
    """Poll until `condition` answers something true."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = await condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def reconciling(database: Database, placing: Placing) -> AsyncIterator[None]:
    """A replica reconciles."""
    task = asyncio.create_task(service.run(database, placing, database.notifier))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def hosts(
    database: Database, *names: str, slots: int = 2, lease_s: float = 2.0
) -> AsyncIterator[dict[str, Actor]]:
    """Agents that live."""
    claims: dict[str, int] = {}
    made = {name: Actor(database, claims, name, slots, lease_s) for name in names}
    for actor in made.values():
        await actor.register()
    tasks_ = [asyncio.create_task(actor.live()) for actor in made.values()]
    try:
        yield made
    finally:
        for task in tasks_:
            task.cancel()
        for result in await asyncio.gather(*tasks_, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


def ids(rows: list[RunRow]) -> Iterator[str]:
    return (row.id for row in rows)
