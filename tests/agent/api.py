"""A control plane for agents, over real HTTP: it gives the orders of a test and records what it is told."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import threading
from collections import defaultdict
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from clonos.resources.hosts import (
    AgentRegister,
    AgentRegistered,
    EventsPiece,
    Heartbeat,
    HeartbeatAnswer,
    LogPiece,
    PieceTaken,
    Pushes,
    PushesTaken,
    RunOrder,
    RunReport,
    TaskOrder,
    TaskResult,
    Work,
)
from observe import eventually

HEARTBEAT_S = 0.2
GUARDED_S = 0.05


class FakeApi:
    """It may be stopped and started again on the same port; what it has recorded stays."""

    def __init__(self) -> None:
        self.artifacts: dict[str, bytes] = {}
        self.served: dict[str, list[bytes]] = {}  # instead of the artifact, first to last
        self.downloads: dict[str, int] = defaultdict(int)
        self.instances: dict[str, str] = {}
        self.registered: list[AgentRegister] = []
        self.left: list[str] = []
        self.removed: set[str] = set()
        self.reports: dict[str, RunReport] = {}
        self.history: dict[str, list[RunReport]] = defaultdict(list)
        self.heartbeats = 0
        self.spares = 0
        self.beats_s: list[float] = []
        self.pushes = 0
        self.forward_ms = 200
        self.events: dict[str, list[str]] = defaultdict(list)
        self.events_end: dict[str, int] = defaultdict(int)
        self.log: dict[str, str] = defaultdict(str)
        self.log_end: dict[str, int] = defaultdict(int)
        self.gaps: list[tuple[str, int, int]] = []
        self.lasts: list[str] = []
        self.results: dict[str, list[TaskResult]] = defaultdict(list)
        self.work = Work(revision=1)
        self.tokens: set[str | None] = set()
        self.failing = 0  # a status for every request
        self.refuse_events = lambda lines: False
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        config = uvicorn.Config(self._app(), host="127.0.0.1", port=self.port, log_level="critical", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        eventually(lambda: self._server is not None and self._server.started, "the fake control plane starts")

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.force_exit = self._server.should_exit = True
            self._thread.join(10)
            assert not self._thread.is_alive()
            self._server = self._thread = None

    def upload(self, content: bytes) -> str:
        sha = hashlib.sha256(content).hexdigest()
        self.artifacts[sha] = content
        return sha

    def order(self, *runs: RunOrder, tasks: tuple[TaskOrder, ...] = ()) -> None:
        """All that there is to do from now on."""
        self.work = Work(revision=self.work.revision + 1, runs=list(runs), tasks=list(tasks))

    def _app(self) -> FastAPI:
        app = FastAPI()

        @app.middleware("http")
        async def fail(request: Request, go_on: Any) -> Response:
            self.tokens.add(request.headers.get("authorization"))
            if self.failing:
                return problem(self.failing, "store-away")
            return await go_on(request)

        @app.post("/api/v1/agents")
        async def register(body: AgentRegister) -> AgentRegistered:
            self.registered.append(body)
            self.instances[body.name] = body.instance
            return AgentRegistered(
                id=f"id-{body.name}", lease_s=1.0, heartbeat_s=HEARTBEAT_S, guarded_heartbeat_s=GUARDED_S
            )

        @app.post("/api/v1/agents/{agent}/heartbeat")
        async def heartbeat(agent: str, body: Heartbeat) -> Any:
            if agent in self.removed:
                return problem(410, "agent-removed")
            known = self.instances.get(agent.removeprefix("id-"))
            if known is None:
                return problem(404, "agent-unknown")
            if known != body.instance:
                return problem(409, "agent-replaced")
            self.heartbeats += 1
            self.spares = body.spares
            self.beats_s.append(body.beat_s)
            self.reports = {one.run: one for one in body.runs}
            for one in body.runs:
                if not self.history[one.run] or self.history[one.run][-1] != one:
                    self.history[one.run].append(one)
            return HeartbeatAnswer(revision=self.work.revision, forward_ms=self.forward_ms)

        @app.get("/api/v1/agents/{agent}/work")
        async def work(agent: str, after: int, wait_s: float) -> Work:
            deadline = asyncio.get_running_loop().time() + wait_s
            while self.work.revision == after and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(0.01)
            return self.work

        @app.post("/api/v1/agents/{agent}/pushes")
        async def pushes(agent: str, body: Pushes) -> PushesTaken:
            self.pushes += 1
            return PushesTaken(events=[events(one) for one in body.events], logs=[log(one) for one in body.logs])

        def events(body: EventsPiece) -> PieceTaken:
            run = body.run
            self.lasts += [run] if body.last else []
            if self.refuse_events(body.lines):
                return PieceTaken(run=run, status=422, detail="events-invalid")
            if body.offset > self.events_end[run] and body.gap:
                self.gaps.append((run, self.events_end[run], body.offset))
                self.events_end[run] = body.offset
            at = body.offset
            for line in body.lines:
                if at == self.events_end[run]:
                    self.events[run].append(line)
                    self.events_end[run] += len(line.encode()) + 1
                at += len(line.encode()) + 1
            return PieceTaken(run=run, offset=self.events_end[run])

        def log(body: LogPiece) -> PieceTaken:
            run = body.run
            if body.offset > self.log_end[run] and body.gap:
                self.gaps.append((run, self.log_end[run], body.offset))
                self.log_end[run] = body.offset
            new = body.text.encode()[self.log_end[run] - body.offset :] if body.offset <= self.log_end[run] else b""
            self.log[run] += new.decode(errors="replace")
            self.log_end[run] += len(new)
            return PieceTaken(run=run, offset=self.log_end[run])

        @app.post("/api/v1/agents/{agent}/tasks/{task}")
        async def task(agent: str, task: str, body: TaskResult) -> dict[str, str]:
            self.results[task].append(body)
            return {}

        @app.delete("/api/v1/agents/{agent}")
        async def leave(agent: str) -> dict[str, str]:
            self.left.append(agent)
            return {}

        @app.get("/api/v1/artifacts/{sha}/content")
        async def content(sha: str) -> Any:
            self.downloads[sha] += 1
            instead = self.served.get(sha)
            if instead:
                return Response(instead.pop(0))
            return Response(self.artifacts[sha]) if sha in self.artifacts else problem(404, "artifact-unknown")

        return app


def problem(status: int, slug: str) -> JSONResponse:
    body = {"type": f"https://clonos.dev/problems/{slug}", "status": status, "detail": slug}
    return JSONResponse(body, status, media_type="application/problem+json")
