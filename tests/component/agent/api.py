"""A fake control plane over real HTTP: it serves the work that a test sets and records all requests."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import defaultdict
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from clonos.embedded.layout import free_ports
from clonos.resources.host_capacity import HostCapacity
from clonos.resources.hosts import (
    BatchResult,
    EventsBatch,
    Heartbeat,
    HeartbeatResponse,
    HostRegister,
    HostRegistered,
    HostTask,
    LogBatch,
    Push,
    PushResult,
    RunReport,
    RunSpec,
    TaskResult,
    Work,
)
from clonos.testing.harness import eventually

HEARTBEAT_S = 0.2
GUARDED_S = 0.05


class FakeApi:
    """Can be stopped and started again on the same port; the recorded requests remain."""

    def __init__(self) -> None:
        self.artifacts: dict[str, bytes] = {}
        self.served: dict[str, list[bytes]] = {}  # responses instead of the artifact, in this sequence
        self.downloads: dict[str, int] = defaultdict(int)
        self.instances: dict[str, str] = {}
        self.registered: list[HostRegister] = []
        self.left: list[str] = []
        self.removed: set[str] = set()
        self.reports: dict[str, RunReport] = {}
        self.history: dict[str, list[RunReport]] = defaultdict(list)
        self.heartbeats = 0
        self.capacities: list[HostCapacity] = []
        self.refuses_capacity = False
        self.lease_s = 1.0
        self.pool_drivers = 0
        self.beats_s: list[float] = []
        self.pushes = 0
        self.push_interval_ms = 200
        self.events: dict[str, list[str]] = defaultdict(list)
        self.events_end: dict[str, int] = defaultdict(int)
        self.log: dict[str, str] = defaultdict(str)
        self.log_end: dict[str, int] = defaultdict(int)
        self.gaps: list[tuple[str, int, int]] = []
        self.lasts: list[str] = []
        self.results: dict[str, list[TaskResult]] = defaultdict(list)
        self.work = Work(revision=1)
        self.tokens: set[str | None] = set()
        self.failing = 0  # if not 0: the status of every response
        self.refuse_events = lambda lines: False
        (self.port,) = free_ports(1)
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        config = uvicorn.Config(self.app(), host="127.0.0.1", port=self.port, log_level="critical", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        eventually(lambda: self._server is not None and self._server.started, "the fake control plane starts")

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.force_exit = self._server.should_exit = True
            self._thread.join(60)
            assert not self._thread.is_alive()
            self._server = self._thread = None

    def upload(self, content: bytes) -> str:
        sha = hashlib.sha256(content).hexdigest()
        self.artifacts[sha] = content
        return sha

    def assign(self, *runs: RunSpec, tasks: tuple[HostTask, ...] = ()) -> None:
        """Replace the work of the host."""
        self.work = Work(revision=self.work.revision + 1, runs=list(runs), tasks=list(tasks))

    def app(self) -> FastAPI:
        app = FastAPI(openapi_url=None)

        @app.middleware("http")
        async def fail(request: Request, call_next: Any) -> Response:
            self.tokens.add(request.headers.get("authorization"))
            if self.failing:
                return problem(self.failing, "database-unavailable")
            return await call_next(request)

        @app.post("/api/v1/hosts")
        async def register(body: HostRegister) -> HostRegistered:
            self.registered.append(body)
            self.instances[body.name] = body.instance
            return HostRegistered(
                id=f"id-{body.name}", lease_s=self.lease_s, heartbeat_s=HEARTBEAT_S, standby_heartbeat_s=GUARDED_S
            )

        @app.post("/api/v1/hosts/{agent}/heartbeat")
        async def heartbeat(agent: str, body: Heartbeat) -> Any:
            if agent in self.removed:
                return problem(410, "agent-removed")
            known = self.instances.get(agent.removeprefix("id-"))
            if known is None:
                return problem(404, "agent-unknown")
            if known != body.instance:
                return problem(409, "agent-replaced")
            if body.capacity is not None:
                self.capacities.append(body.capacity)
                if self.refuses_capacity:
                    return problem(422, "invalid-request")
            self.heartbeats += 1
            self.pool_drivers = body.pool_available
            self.beats_s.append(body.heartbeat_interval_s)
            self.reports = {report.run: report for report in body.runs}
            for report in body.runs:
                if not self.history[report.run] or self.history[report.run][-1] != report:
                    self.history[report.run].append(report)
            return HeartbeatResponse(revision=self.work.revision, push_interval_ms=self.push_interval_ms)

        @app.get("/api/v1/hosts/{agent}/work")
        async def work(agent: str, after: int, wait_s: float) -> Work:
            deadline = asyncio.get_running_loop().time() + wait_s
            while self.work.revision == after and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(0.01)
            return self.work

        @app.post("/api/v1/hosts/{agent}/push")
        async def pushes(agent: str, body: Push) -> PushResult:
            self.pushes += 1
            return PushResult(events=[events(batch) for batch in body.events], logs=[log(batch) for batch in body.logs])

        def events(body: EventsBatch) -> BatchResult:
            run = body.run
            self.lasts += [run] if body.last else []
            if self.refuse_events(body.lines):
                return BatchResult(run=run, status=422, detail="events-invalid")
            if body.offset > self.events_end[run] and body.gap:
                self.gaps.append((run, self.events_end[run], body.offset))
                self.events_end[run] = body.offset
            at = body.offset
            for line in body.lines:
                if at == self.events_end[run]:
                    self.events[run].append(line)
                    self.events_end[run] += len(line.encode()) + 1
                at += len(line.encode()) + 1
            return BatchResult(run=run, offset=self.events_end[run])

        def log(body: LogBatch) -> BatchResult:
            run = body.run
            if body.offset > self.log_end[run] and body.gap:
                self.gaps.append((run, self.log_end[run], body.offset))
                self.log_end[run] = body.offset
            new = body.text.encode()[self.log_end[run] - body.offset :] if body.offset <= self.log_end[run] else b""
            self.log[run] += new.decode(errors="replace")
            self.log_end[run] += len(new)
            return BatchResult(run=run, offset=self.log_end[run])

        @app.post("/api/v1/hosts/{agent}/tasks/{task}")
        async def task(agent: str, task: str, body: TaskResult) -> dict[str, str]:
            self.results[task].append(body)
            return {}

        @app.post("/api/v1/hosts/{agent}/leave")
        async def leave(agent: str) -> dict[str, str]:
            self.left.append(agent)
            return {}

        @app.get("/api/v1/artifacts/{sha}/content")
        async def content(sha: str) -> Any:
            self.downloads[sha] += 1
            responses = self.served.get(sha)
            if responses:
                return Response(responses.pop(0))
            return Response(self.artifacts[sha]) if sha in self.artifacts else problem(404, "artifact-unknown")

        return app


def problem(status: int, slug: str) -> JSONResponse:
    body = {"type": f"/docs/errors/{slug}", "status": status, "detail": slug}
    return JSONResponse(body, status, media_type="application/problem+json")
