"""A fake host agent over the routes of the control plane. Its drivers exist only as reports and events."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from pydantic import BaseModel

from clonos.resources.hosts import (
    EventsBatch,
    Heartbeat,
    HostRegister,
    HostTask,
    Push,
    RunReport,
    RunSpec,
    TaskResult,
    Work,
)
from clonos.resources.jobs import Failure, StopMode
from clonos.resources.service import Role, TokenCreate
from clonos_api import guards
from clonos_api.http import problems
from clonos_api.replica import Replica
from clonos_api.routes import host_agents
from clonos_api.settings import ApiSettings
from clonos_api.store import tokens
from clonos_api.store.db.database import Database
from support.serving import API, UNLIMITED
from support.stored import EventFile, unique

Ask = Callable[..., Awaitable[httpx.Response | None]]
_STEP_S = 0.05
_BATCH_LINES = 50


@dataclass
class FakeDriver:
    """The agent's state of a run.

    Attributes:
        file: The events of its driver, of which the control plane has `pushed_lines`.
        report: Fields of the next `RunReport`.
        unwanted: The run is no longer work of this host.
    """

    spec: RunSpec
    file: EventFile = field(default_factory=EventFile)
    pushed_lines: int = 0
    report: dict[str, Any] = field(default_factory=dict)
    unwanted: bool = False
    offsets: list[int] = field(default_factory=lambda: [0])

    def fail(self, code: int, failure: Failure) -> None:
        """The driver has ended for good."""
        self.report |= {"state": "EXITED", "exit_code": code, "failure": failure, "final": True}

    def batch(self, *, last: bool) -> EventsBatch:
        """The next lines."""
        for line in self.file.lines[len(self.offsets) - 1 :]:
            self.offsets.append(self.offsets[-1] + len(line.encode()) + 1)
        first = self.pushed_lines
        lines = self.file.lines[first : first + _BATCH_LINES]
        return EventsBatch(run=self.spec.run, offset=self.offsets[first], lines=lines, last=last)


class FakeAgent:
    """An agent: it follows its work, sends heartbeats, and pushes the events of its drivers.

    Args:
        ask: Sends a request with the agent's token; None: there was no response.
        claims: Job → generation of its causal log; the agents of a test share it.
        heartbeat_s: Longest time between two heartbeats; each news is sent at once.

    Attributes:
        drivers: By run.
        hidden: The agent sends nothing, and its drivers do nothing.
        starts: Whether drivers claim.
        warms: Whether standbys become READY.
        counted: Times of accepted pushes.
    """

    warms = True

    def __init__(self, ask: Ask, name: str, claims: dict[str, int], *, slots: int = 2, heartbeat_s: float = 0.5,
                 domain: str | None = None) -> None:  # fmt: skip
        self._ask, self.name, self.claims, self._heartbeat_s = ask, name, claims, heartbeat_s
        self._body = HostRegister(name=name, instance=unique(), slots=slots, failure_domain=domain or name)
        self.id = ""
        self.drivers: dict[str, FakeDriver] = {}
        self.hidden = False
        self.starts = True
        self.counted: list[float] = []

    async def register(self) -> None:
        """Register the host."""
        answer = await self._ask("POST", "/hosts", json=self._body.model_dump(mode="json"))
        assert answer is not None
        assert answer.status_code == 201, answer.text
        self.id = answer.json()["id"]

    async def live(self) -> None:
        """Be an agent, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for part in (self._send_heartbeats, self._follow_work, self._push_events):
                group.create_task(part())

    async def _request(self, method: str, path: str, body: BaseModel | None = None, **how: Any) -> Any:
        """The body of the response; None if the control plane is unavailable."""
        json = None if body is None else body.model_dump(mode="json")
        answer = await self._ask(method, f"/hosts/{self.id}{path}", json=json, **how)
        if answer is None or answer.status_code == 503:
            await asyncio.sleep(random.uniform(0.2, 0.5))
            return None
        assert answer.is_success, f"{path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else {}

    async def _send_heartbeats(self) -> None:
        said: list[RunReport] = []
        at = 0.0
        while True:
            runs = [RunReport(run=run, **driver.report) for run, driver in self.drivers.items() if driver.report]
            if not self.hidden and (runs != said or time.monotonic() - at >= self._heartbeat_s):
                body = Heartbeat(instance=self._body.instance, runs=runs, heartbeat_interval_s=self._heartbeat_s)
                if await self._request("POST", "/heartbeat", body, timeout=1.0) is not None:
                    said, at = runs, time.monotonic()
            await asyncio.sleep(_STEP_S)

    async def _follow_work(self) -> None:
        revision = 0
        while True:
            asked = {"after": revision, "wait_s": 2.0}
            answer = None if self.hidden else await self._request("GET", "/work", params=asked, timeout=9.0)
            if answer is None or self.hidden:
                await asyncio.sleep(_STEP_S)
                continue
            work = Work.model_validate(answer)
            revision = work.revision
            for spec in work.runs:
                self.drivers.setdefault(spec.run, FakeDriver(spec)).spec = spec
            wanted = {spec.run for spec in work.runs}
            for run, driver in self.drivers.items():
                driver.unwanted = run not in wanted
            for task in work.tasks:
                await self._request("POST", f"/tasks/{task.task}", self.do(task))

    async def _push_events(self) -> None:
        """Run the drivers and push their events. A run ends after all its events are stored."""
        while True:
            for run, driver in [] if self.hidden else list(self.drivers.items()):
                self.act(driver)
                if driver.pushed_lines < len(driver.file.lines):
                    await self._push(driver)
                elif driver.unwanted and await self._push(driver, last=True):
                    del self.drivers[run]
            await asyncio.sleep(_STEP_S)

    async def _push(self, driver: FakeDriver, *, last: bool = False) -> bool:
        """Push the next lines; returns whether all lines are stored."""
        body = Push(instance=self._body.instance, events=[driver.batch(last=last)])
        answer = await self._request("POST", "/push", body)
        if answer is None:
            driver.pushed_lines = max(0, driver.pushed_lines - 3)  # like a restarted agent, it repeats stored lines
            return False
        self.counted.append(time.monotonic())
        driver.pushed_lines = driver.offsets.index(answer["events"][0]["offset"])
        return driver.pushed_lines == len(driver.file.lines)

    def do(self, task: HostTask) -> TaskResult:
        """The result of a host task."""
        result = {"epochs": {"out": 3}, "size_bytes": 1} if task.kind == "savepoint" else {}
        return TaskResult(instance=self._body.instance, ok=True, result=result)

    def claim(self, driver: FakeDriver, generation: int) -> None:
        """The driver has claimed the causal log."""
        driver.file.start(generation)
        driver.file.epoch(generation)

    def act(self, driver: FakeDriver) -> None:
        """The next step of a driver."""
        spec, report = driver.spec, driver.report
        if report.get("final"):
            return
        attempt = {"attempts": spec.earlier_attempts + 1}
        if spec.desired != "RUNNING":
            if driver.pushed_lines < len(driver.file.lines):
                return
            killed = spec.desired == "ABSENT" or spec.stop_mode is StopMode.FORCE
            report |= {"state": "EXITED", "exit_code": -9 if killed else 0, "final": True}
            report["driver_state"] = report.get("driver_state") if killed else "STOPPED"
        elif spec.standby:
            driver.report = {"state": "RUNNING", "driver_state": "READY" if self.warms else "WARMING", **attempt}
        elif not report or report.get("driver_state") == "READY":
            driver.report = {"state": "STARTING", "started_at": datetime.now(UTC), **attempt}
        elif self.starts and report["state"] == "STARTING":
            generation = self.claims[spec.job] = self.claims.get(spec.job, 0) + 1
            self.claim(driver, generation)
            report |= {"state": "RUNNING", "driver_state": "RUNNING", "generation": generation}


def agent_routes(database: Database, home: Path, **settings: Any) -> FastAPI:
    """The routes for agents, with the guards of the whole service, on an open database."""
    chosen = ApiSettings(home=home, limits=UNLIMITED, **settings)
    app = FastAPI()
    app.state.replica = replica = Replica.of(chosen)
    app.state.database = replica.database = database
    app.state.known_agents, app.state.registry = replica.known_agents, replica.registry
    problems.install(app)
    guards.install(app, chosen)
    app.include_router(host_agents.router)
    return app


@asynccontextmanager
async def client_of(database: Database, app: FastAPI, name: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an app in this process, with a new token of the agent `name`."""
    async with database.transaction() as session:
        _, secret = await tokens.create(session, TokenCreate(name=unique(name), role=Role.AGENT, host=name))
    headers = {"Authorization": f"Bearer {secret}"}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://127.0.0.1{API}", headers=headers) as client:
        yield client
