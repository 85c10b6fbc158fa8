"""Agents and users for the real store. Agents act like `clonos.agent`; their drivers only exist as reports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import ConcurrentUpdate, DatabaseUnavailable
from clonos.jobs.spec import Standbys
from clonos.resources.hosts import HostRegister, RunReport, RunSpec, TaskResult
from clonos.resources.jobs import DesiredState, Failure, StartFrom, StopMode, StopRequest
from clonos.testing.harness import Deadline
from clonos_api.reconcile import loop
from clonos_api.routes.access import changing
from clonos_api.store import clusters, events, hosts, jobs, operations, outcomes, runs, savepoints, tasks
from clonos_api.store.columns import OperationArguments
from clonos_api.store.db.database import Database
from clonos_api.store.tables import JobRow, OperationRow, RunRow
from support.stored import EventFile, ingest, spec, store_artifact, unique

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


@dataclass
class Acted:
    """The agent's state of a driver."""

    spec: RunSpec
    file: EventFile
    pushed_lines: int = 0
    report: dict[str, Any] = field(default_factory=dict)

    def fail(self, code: int, failure: Failure) -> None:
        self.report |= {"state": "EXITED", "exit_code": code, "failure": failure, "final": True}


class Actor:
    """An agent."""

    # Job → generation of its causal log; all agents of a test share it.
    claims: dict[str, int]
    warms = True  # whether standbys become READY

    def __init__(self, database: Database, claims: dict[str, int], name: str, slots: int = 2, lease_s: float = 2.0):
        self.database, self.claims, self.name, self.slots, self.lease_s = database, claims, name, slots, lease_s
        self.instance = unique()
        self.id = ""
        self.drivers: dict[str, Acted] = {}
        self.hidden = False
        self.starts = True  # whether drivers claim
        self.domain = name  # failure domain

    async def register(self) -> None:
        body = HostRegister(name=self.name, instance=self.instance, slots=self.slots, failure_domain=self.domain)
        async with self.database.transaction() as session:
            self.id = (await hosts.register(session, body, lease_s=self.lease_s)).id

    async def live(self) -> None:
        while True:
            if not self.hidden:
                # The database is unavailable, or another writer was faster: the next heartbeat repeats the report.
                with contextlib.suppress(DatabaseUnavailable, ConcurrentUpdate):
                    await self.beat()
            await asyncio.sleep(0.1)

    async def beat(self) -> None:
        async with self.database.reading() as session:
            work = await runs.work(session, self.id)
        wanted = {wanted_spec.run for wanted_spec in work.runs}
        self.drivers = {run: driver for run, driver in self.drivers.items() if run in wanted}
        for wanted_spec in work.runs:
            self._follow(self.drivers.setdefault(wanted_spec.run, Acted(wanted_spec, EventFile())), wanted_spec)
        async with self.database.transaction() as session:
            await runs.report(
                session, self.id, [RunReport(run=run, **driver.report) for run, driver in self.drivers.items()]
            )
            await hosts.heartbeat(session, self.id, self.instance, hosts.Liveness(self.lease_s))
        for run, driver in self.drivers.items():
            # Read before the transaction: a test may push lines itself in the meantime.
            first = driver.pushed_lines
            if lines := driver.file.lines[first:]:
                async with self.database.transaction() as session:
                    await ingest(session, run, driver.file.offset(first), lines)
                driver.pushed_lines = max(driver.pushed_lines, first + len(lines))
        for task in work.tasks:
            async with self.database.transaction() as session:
                row = await tasks.get(session, task.task)
                if await tasks.end(session, row):
                    if task.kind == clusters.CHECK:
                        await outcomes.settle(session, row, TaskResult(instance=self.instance, ok=True))
                        continue
                    savepoint = await savepoints.get(session, task.arguments["savepoint"])
                    if task.kind == "savepoint":
                        await savepoints.complete(session, savepoint, epochs={"out": 3}, size_bytes=1)
                    else:
                        await savepoints.remove(session, savepoint)
                    if row.operation:
                        await operations.complete(session, await operations.get(session, row.operation))

    def _follow(self, driver: Acted, wanted_spec: RunSpec) -> None:
        driver.spec = wanted_spec
        if driver.report.get("final"):
            return
        if wanted_spec.desired != "RUNNING":
            killed = wanted_spec.desired == "ABSENT" or wanted_spec.stop_mode is StopMode.FORCE
            driver.report |= {"state": "EXITED", "exit_code": -9 if killed else 0, "final": True}
            driver.report["driver_state"] = driver.report.get("driver_state") if killed else "STOPPED"
        elif wanted_spec.standby:
            state = "READY" if self.warms else "WARMING"
            driver.report = {"state": "RUNNING", "driver_state": state, "attempts": wanted_spec.earlier_attempts + 1}
        elif not driver.report or driver.report.get("driver_state") == "READY":
            driver.report = {
                "state": "STARTING",
                "attempts": wanted_spec.earlier_attempts + 1,
                "started_at": datetime.now(UTC),
            }
        elif self.starts and (driver.report["state"] == "STARTING" or driver.report.get("driver_state") == "READY"):
            generation = self.claims[wanted_spec.job] = self.claims.get(wanted_spec.job, 0) + 1
            driver.file.start(generation)
            driver.file.epoch(generation)
            driver.report |= {"state": "RUNNING", "driver_state": "RUNNING", "generation": generation}


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
) -> AsyncIterator[dict[str, Actor]]:
    """Runs agents."""
    claims: dict[str, int] = {}
    made = {name: Actor(database, claims, name, slots, lease_s) for name in names}
    for actor in made.values():
        actor.domain = (domains or {}).get(actor.name, actor.name)
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
