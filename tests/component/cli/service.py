"""A fake control plane: real HTTP, the bodies of `clonos.resources`, and injected faults."""

from __future__ import annotations

import hashlib
import json
import secrets
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Query, Request, Response, UploadFile
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from clonos.resources.base import Page, Problem
from clonos.resources.checkpoints import (
    CheckpointCounts,
    Checkpoints,
    CheckpointSummary,
    EpochCheckpoint,
    LatestCheckpoints,
    Savepoint,
    Span,
)
from clonos.resources.event_types import sentence_of
from clonos.resources.hosts import Host, HostRegister, HostState, Standby
from clonos.resources.incidents import ListedRecovery, QueryContinuity, compare, incident, loss_of, sentence
from clonos.resources.jobs import (
    DesiredState,
    Failure,
    Generation,
    Job,
    JobCreate,
    JobException,
    JobPatch,
    JobState,
    JobSummary,
    LogLines,
    Metrics,
    MoveRequest,
    Phase,
    QueryMetrics,
    Recovery,
    ResolveRequest,
    Run,
    StartFrom,
    StopRequest,
    UpgradeRequest,
)
from clonos.resources.service import (
    EndedSessions,
    Event,
    Health,
    Operation,
    Role,
    Session,
    SignInCode,
    Token,
    TokenCreate,
    TokenCreated,
)
from clonos.resources.status import Dependencies, Status
from clonos.telemetry.log_entries import Level, LogFilter, LogParser

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
TOKEN = "clonos_abc_secret"


def problem(status: int, slug: str, detail: str, **more: Any) -> Response:
    body = Problem(type=f"/docs/errors/{slug}", title=slug, status=status, detail=detail, **more)
    return Response(body.model_dump_json(), status, media_type="application/problem+json")


# The body of each action, and the state in which it leaves the job.
ACTIONS: dict[str, tuple[type[BaseModel] | None, JobState]] = {
    "start": (StartFrom, JobState.RUNNING),
    "stop": (StopRequest, JobState.STOPPED),
    "restart": (None, JobState.RUNNING),
    "move": (MoveRequest, JobState.RUNNING),
    "upgrade": (UpgradeRequest, JobState.RUNNING),
    "resolve": (ResolveRequest, JobState.RUNNING),
    "cancel": (None, JobState.CANCELED),
}
# Their rows are the attribute with the last name.
LISTS = (
    "/jobs/{name}/recoveries",
    "/jobs/{name}/exceptions",
    "/jobs/{name}/savepoints",
    "/savepoints",
    "/hosts",
    "/tokens",
)


class FakeService:
    """A fake control plane whose state is plain attributes.

    Attributes:
        received: Each request: method, path, query, headers, body.
        faults: Responses to the next requests; None: the normal response.
        streams: Content of each connection to an event stream, before it breaks.
        application: Further fields of each driver's run.
        log: Lines of every job's log.
        on_follow: Called when a client begins to follow a log.
        slow: Number of requests until an operation is complete.
        started: State of a job that starts, at the next request for it; None: it stays STARTING.

    Args:
        port: Port to listen on; 0: a free one.
        tls: PEM files with a certificate and its key; None: plain HTTP.
    """

    def __init__(self, port: int = 0, *, tls: tuple[Path, Path] | None = None) -> None:
        self.clear()
        self.app = FastAPI(openapi_url=None)
        self.app.middleware("http")(self._watch)
        self._routes()
        self._listening = socket.create_server(("127.0.0.1", port))
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._listening.getsockname()[1]}"
        config = uvicorn.Config(
            self.app,
            log_config=None,
            lifespan="off",
            timeout_graceful_shutdown=1,
            ssl_certfile=tls[0] if tls else None,
            ssl_keyfile=tls[1] if tls else None,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listening]}, daemon=True)

    def clear(self) -> None:
        """Begin again with the state of a new service."""
        self.received: list[tuple[str, str, str, dict[str, str], bytes]] = []
        self.faults: deque[Response | None] = deque()
        self.jobs: dict[str, Job] = {}
        self.operations: dict[str, Operation] = {}
        self.recoveries: list[Recovery] = []
        self.exceptions: list[JobException] = []
        self.savepoints: list[Savepoint] = []
        self.hosts: list[Host] = []
        self.standbys: list[Standby] = []
        self.status = Status(
            at=NOW,
            health="healthy",
            summary="No running job is failing.",
            led=True,
            counts={"healthy": 1},
            hosts={"host-1": "READY"},
            dependencies=Dependencies(brokers=3, silent=[], waiting=[], under_replicated=0, open_transactions=0),
            jobs=[],
        )
        self.application: dict[str, Any] = {}
        self.tokens: list[Token] = []
        self.sessions: list[Session] = []
        self.events: list[Event] = []
        self.streams: deque[bytes] = deque()
        self.log = ["one", "two", "three"]
        self.on_follow: Callable[[], None] = lambda: None
        self.uploads: dict[str, bytes] = {}
        self.keys: dict[str, tuple[int, bytes]] = {}
        self.slow = 1
        self.started: JobState | None = None
        self.first_epoch: Failure | None = None  # the failure of the first epoch after a start
        self.unplaced: Failure | None = None  # why no host runs a started job
        self.awaited: list[str] = []  # queries without an epoch since the start
        self.failing: Failure | None = None
        self.health = Health(status="ok", version="0.1.0", database="ok", leader=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(60)
        self._listening.close()

    def requests(self, method: str, path: str) -> list[tuple[str, dict[str, str], bytes]]:
        """Query, headers and body of the matching requests."""
        return [request[2:] for request in self.received if request[:2] == (method, f"/api/v1{path}")]

    async def _watch(self, request: Request, call_next: Any) -> Response:
        body = await request.body()
        headers = dict(request.headers)
        self.received.append((request.method, request.url.path, request.url.query, headers, body))
        if self.faults and (fault := self.faults.popleft()) is not None:
            return fault
        if headers.get("authorization") != f"Bearer {TOKEN}":
            return problem(401, "unauthenticated", "The token is invalid.", hint="send another token.")
        key = headers.get("idempotency-key")
        if key is not None and key in self.keys:
            status, body = self.keys[key]
            return Response(body, status, media_type="application/json")
        response: Response = await call_next(request)
        if key is not None:
            content = b"".join([part async for part in response.body_iterator])  # type: ignore[attr-defined]
            self.keys[key] = (response.status_code, content)
            return Response(content, response.status_code, media_type="application/json")
        return response

    def add(self, name: str, state: JobState = JobState.RUNNING, **more: Any) -> Job:
        """Add a job."""
        request = JobCreate.model_validate({"spec": {"metadata": {"name": name}}, "artifact": "a" * 64})
        defaults: dict[str, Any] = {
            "id": secrets.token_hex(8),
            "name": name,
            "spec": request.spec,
            "version": 1,
            "observed_version": 1,
            "artifact": request.artifact,
            "desired_state": DesiredState.RUNNING,
            "state": state,
            "state_since": NOW,
            "generation": 1,
            "run": "r" if self.unplaced is None else None,
            "host": "host-1" if self.unplaced is None else None,
            "created_by": "ada",
            "created_at": NOW,
            "updated_at": NOW,
        }
        job = Job(**{**defaults, **more})
        self.jobs[job.id] = job
        return job

    def change(self, name: str, **fields: Any) -> None:
        job = self._find(name)
        assert job is not None
        self.jobs[job.id] = job.model_copy(update=fields)

    def add_event(self, kind: str, job: str | None = None, **data: Any) -> Event:
        text = sentence_of(kind, data, job=job or "")
        event = Event(seq=len(self.events) + 1, at=NOW, type=kind, job=job, text=text, data=data)
        self.events.append(event)
        return event

    def _find(self, name: str) -> Job | None:
        return next((job for job in self.jobs.values() if name in (job.id, job.name)), None)

    def _begin(self, kind: str, job: str | None) -> Response:
        operation = Operation(
            id=secrets.token_hex(8),
            kind=kind,
            job=job,
            state="IN_PROGRESS",
            created_at=NOW,
            deadline=NOW + timedelta(minutes=1),
        )
        self.operations[operation.id] = operation
        return shown(operation, 202)

    def _update(self, job: Job, body: JobPatch | UpgradeRequest, request: Request) -> Response | None:
        """Store a new version; returns the response if it is refused."""
        if request.headers["if-match"] != f'"{job.version}"':
            return problem(412, "version-stale", "The version is stale.")
        changed = {"spec": body.spec or job.spec, "artifact": body.artifact or job.artifact}
        self.change(job.id, version=job.version + 1, **changed)
        return None

    async def _list(self, request: Request, limit: int = 50) -> Response:
        return shown(Page[Any](data=getattr(self, request.url.path.rpartition("/")[2])[:limit]))

    def _routes(self) -> None:
        app, root = self.app, "/api/v1"

        for path in LISTS:
            app.get(root + path)(self._list)

        @app.post(f"{root}/artifacts")
        async def upload(file: UploadFile) -> Response:
            content = await file.read()
            sha = hashlib.sha256(content).hexdigest()
            self.uploads[sha] = content
            kind = "zip" if content[:2] == b"PK" else "py"
            body = {"id": sha, "kind": kind, "name": file.filename, "size_bytes": len(content)}
            return Response(json.dumps({**body, "created_at": NOW.isoformat(), "created_by": "ada"}), 201)

        @app.post(f"{root}/jobs")
        async def create(body: JobCreate) -> Response:
            if self._find(body.spec.name):
                return problem(409, "name-taken", f"A job is named {body.spec.name!r}.")
            state = JobState.STARTING if body.start else JobState.CREATED
            return shown(self.add(body.spec.name, state, spec=body.spec, artifact=body.artifact, generation=0), 201)

        @app.get(f"{root}/jobs")
        async def jobs(request: Request, limit: int = 50, starting_after: str | None = None) -> Response:
            states = request.query_params.getlist("state")
            rows = [job for job in self.jobs.values() if not states or job.state in states]
            return paged(rows, limit, starting_after)

        @app.get(f"{root}/jobs/{{name}}")
        async def job(name: str) -> Response:
            current = self._find(name)
            if current is not None and current.state == JobState.STARTING and self.unplaced is not None:
                self.change(name, failure=self.unplaced)
            elif current is not None and current.state == JobState.STARTING and self.started is not None:
                self.change(name, state=self.started, failure=self.failing)
            return shown(self._find(name)) if current else missing(name)

        @app.patch(f"{root}/jobs/{{name}}")
        async def patch(name: str, body: JobPatch, request: Request) -> Response:
            current = self._find(name)
            assert current is not None
            return self._update(current, body, request) or shown(self._find(name))

        @app.delete(f"{root}/jobs/{{name}}")
        async def delete(name: str) -> Response:
            current = self._find(name)
            if current is None:
                return missing(name)
            del self.jobs[current.id]
            return self._begin("delete", current.id)

        @app.post(f"{root}/jobs/{{name}}/savepoints")
        async def take(name: str) -> Response:
            return self._begin("savepoint", name)

        @app.post(f"{root}/jobs/{{name}}/{{action}}")
        async def act(name: str, action: str, request: Request) -> Response:
            model, state = ACTIONS[action]
            sent = await request.body()
            body = model.model_validate_json(sent) if model and sent else None
            job = self._find(name)
            if job is None:
                return missing(name)
            if action == "upgrade" and job.state != JobState.RUNNING:
                return problem(409, "state-conflict", f"Job {name} is {job.state}.", kept="nothing was changed.")
            changes = isinstance(body, UpgradeRequest) and (body.spec or body.artifact)
            if changes and (refused := self._update(job, body, request)):
                return refused
            self.change(name, state=state)
            return self._begin(action, job.id)

        @app.get(f"{root}/operations")
        async def operations(job: str | None = None, state: str | None = None) -> Page[Operation]:
            rows = [row for row in self.operations.values() if job in (None, row.job) and state in (None, row.state)]
            return Page(data=rows)

        @app.get(f"{root}/operations/{{name}}")
        async def operation(name: str) -> Response:
            current = self.operations[name]
            self.slow -= 1
            if self.slow <= 0:
                state = "FAILED" if self.failing else "COMPLETED"
                current = current.model_copy(update={"state": state, "failure": self.failing, "ended_at": NOW})
            return shown(current)

        @app.get(f"{root}/jobs/{{name}}/metrics")
        async def metrics(name: str) -> Metrics:
            query = QueryMetrics(epoch=41, epochs=42, at=NOW, records_in=1200, records_out=1100, lag={"lines": 7})
            query = query.model_copy(update={"mode": "epochs", "because": "it has the operator Aggregate"})
            return Metrics(at=NOW, queries={"words": query})

        @app.get(f"{root}/jobs/{{name}}/runs/{{run}}")
        async def run(name: str, run: str) -> Response:
            driver_run = Run(id=run, host="host-1", version=1, state="RUNNING", attempts=2, pid=4711, created_at=NOW)
            current = self._find(name)
            if self.first_epoch is not None and current is not None and current.state == JobState.RUNNING:
                self.change(name, state=JobState.FAILED, failure=self.first_epoch)
            awaited = ["words"] if self.first_epoch is not None else self.awaited
            driver_run = driver_run.model_copy(update={**self.application, "awaited": awaited})
            return shown(driver_run) if run == "r" else missing(run)

        @app.get(f"{root}/jobs/{{name}}/generations")
        async def generations(name: str, limit: int = 50) -> Page[Generation]:
            common: dict[str, Any] = {"lineage": 0, "claim_id": "d", "run": "r", "host": "host-1", "attempt": 1}
            rows = [
                Generation(generation=2, cause="crash", claimed_at=NOW, epochs=3, records=30, **common),
                Generation(generation=1, cause="start", claimed_at=NOW, ended_at=NOW, **common),
            ]
            return Page(data=rows[:limit])

        @app.get(f"{root}/recoveries")
        async def all_recoveries(limit: int = 50) -> Page[ListedRecovery]:
            listed = [ListedRecovery(**dict(row), job_name="words", summary=sentence(row)) for row in self.recoveries]
            return Page(data=listed[:limit])

        @app.get(f"{root}/jobs/{{name}}/recoveries/{{recovery_id}}")
        async def explained_recovery(name: str, recovery_id: str) -> Response:
            match = next((row for row in self.recoveries if row.id == recovery_id), None)
            if match is None:
                return missing(recovery_id)
            loss = loss_of(match, [QueryContinuity("words", 41, 42)], exactly_once=True, diverged=0)
            comparison = compare(match, [recovery(id="rec-00", downtime_ms=1000.0)])
            return shown(incident(match, name, loss, comparison, at=NOW, silent_since=NOW))

        @app.get(f"{root}/jobs/{{name}}/logs", response_model=None)
        async def logs(
            name: str,
            tail: int = 200,
            follow: bool = False,
            level: Level | None = None,
            search: str = "",
            since: datetime | None = None,
            parsed: bool = False,
        ) -> LogLines | Response:
            if follow:
                self.on_follow()
                return self._stream()
            if not parsed:
                return LogLines(lines=self.log[-tail:], next="9")
            requested = LogFilter(level, search, since)
            entries = LogParser().parse([("r", line) for line in self.log])
            return LogLines(lines=[], next="9", entries=[row for row in entries if requested.matches(row, [])][-tail:])

        @app.get(f"{root}/jobs/{{name}}/checkpoints")
        async def checkpoints(name: str, limit: int = 50) -> Checkpoints:
            summary = CheckpointSummary(duration_ms={"min": 80.0, "p99": 250.0})
            counts = CheckpointCounts(completed=42, failed=1, retained=2)
            return Checkpoints(
                counts=counts, summary=summary, latest=LatestCheckpoints(), history=[checkpoint(41), checkpoint(40)]
            )

        @app.get(f"{root}/jobs/{{name}}/checkpoints/{{epoch}}")
        async def inspect_checkpoint(name: str, epoch: int) -> Response:
            return shown(checkpoint(epoch)) if epoch <= 41 else missing(str(epoch))

        @app.delete(f"{root}/savepoints/{{name}}")
        async def delete_savepoint(name: str) -> Response:
            return self._begin("delete-savepoint", None)

        @app.get(f"{root}/status")
        async def status() -> Status:
            return self.status

        @app.get(f"{root}/standbys")
        @app.get(f"{root}/jobs/{{name}}/standbys")
        async def standbys(
            name: str | None = None, state: Annotated[list[str] | None, Query()] = None, limit: int = 50
        ) -> Page[Standby]:
            rows = [row for row in self.standbys if name in (None, row.job) and (not state or row.state in state)]
            return Page(data=rows[:limit])

        @app.post(f"{root}/hosts")
        async def register(body: HostRegister) -> dict[str, Any]:
            others = [row for row in self.hosts if row.name != body.name]
            self.hosts = [*others, host(body.name).model_copy(update={"heartbeat_at": datetime.now(UTC)})]
            return {"id": body.name, "lease_s": 4, "heartbeat_s": 1}

        @app.post(f"{root}/hosts/{{name}}/drain")
        async def drain(name: str) -> Response:
            return shown(self.hosts[0].model_copy(update={"state": HostState.DRAINING}))

        @app.post(f"{root}/tokens")
        async def create_token(body: TokenCreate, request: Request) -> TokenCreated:
            assert "idempotency-key" not in request.headers
            token = Token(id="t1", name=body.name, role=body.role, subject="ada", host=body.host, created_at=NOW)
            self.tokens.append(token)
            return TokenCreated(**token.model_dump(), token="clonos_t1_new")

        @app.get(f"{root}/tokens/self")
        async def token_self() -> Token:
            return Token(id="abc", name="ci", role=Role.ADMIN, subject="ada", created_at=NOW)

        @app.post(f"{root}/sign-in-codes", status_code=201)
        async def sign_in_code() -> SignInCode:
            return SignInCode(code="c0de", expires_at=NOW)

        @app.delete(f"{root}/tokens/{{name}}", status_code=204)
        async def revoke(name: str) -> None:
            return None

        @app.get(f"{root}/sessions")
        async def sessions(subject: str | None = None) -> Page[Session]:
            return Page(data=[row for row in self.sessions if subject in (None, row.subject)])

        @app.delete(f"{root}/sessions")
        async def end_sessions(subject: str) -> EndedSessions:
            return EndedSessions(ended=sum(row.subject == subject for row in self.sessions))

        @app.delete(f"{root}/sessions/{{name}}", status_code=204)
        async def end_session(name: str) -> None:
            return None

        @app.get(f"{root}/events/history")
        async def history(
            after: int = 0, limit: int = 50, tail: int | None = None, since: datetime | None = None
        ) -> Page[Event]:
            rows = [event for event in self.events if event.seq > after and (since is None or event.at >= since)]
            if tail is not None:
                return Page(data=rows[-tail:], next=str(self.events[-1].seq if self.events else 0))
            more = len(rows) > limit
            return Page(data=rows[:limit], has_more=more, next=str(rows[limit - 1].seq) if more else None)

        @app.get(f"{root}/events", response_model=None)
        async def stream() -> Response:
            return self._stream()

        @app.post(f"{root}/connectors/{{kind}}/{{name}}/validate")
        async def validate(kind: str, name: str, request: Request) -> dict[str, Any]:
            options = (await request.json())["options"]
            problems = [{"field": key, "what": "unknown", "hint": "omit it"} for key in options if key != "topic"]
            return {"valid": not problems, "problems": problems, "of a newer version": 1}

        @app.get(f"{root}/health")
        async def health() -> Health:
            return self.health

        @app.get(f"{root}/artifacts", response_model=None)
        async def elsewhere() -> Response:
            return Response("<html>a proxy's page</html>", 200)

    def _stream(self) -> Response:
        def content() -> Iterator[bytes]:
            yield self.streams.popleft() if self.streams else b"event: heartbeat\n\n"

        return StreamingResponse(content(), media_type="text/event-stream")


def shown(body: BaseModel | None, status: int = 200) -> Response:
    assert body is not None
    return Response(body.model_dump_json(by_alias=True), status, media_type="application/json")


def missing(name: str) -> Response:
    return problem(404, "not-found", f"There is no {name!r}.", kept="nothing was changed.", hint="look at the list.")


def paged(rows: list[Job], limit: int, after: str | None) -> Response:
    first = next((number + 1 for number, row in enumerate(rows) if row.id == after), 0)
    part = rows[first : first + limit]
    more = first + limit < len(rows)
    summaries = [JobSummary.model_validate(row.model_dump(by_alias=True, exclude={"spec"})) for row in part]
    return shown(Page[JobSummary](data=summaries, has_more=more, next=part[-1].id if more else None))


def checkpoint(epoch: int) -> EpochCheckpoint:
    return EpochCheckpoint(
        epoch=epoch,
        query="words",
        status="COMPLETED",
        generation=2,
        completed_at=NOW,
        duration_ms=120.0,
        records_in=30,
        records_out=28,
        size_bytes=2048,
        offsets={"lines": {"0": 10, "1": 12}},
        spans=[Span(name="commit", duration_ms=30.0)],
        live=epoch == 41,
        steps=7 if epoch == 41 else 0,
    )


def recovery(**more: Any) -> Recovery:
    defaults: dict[str, Any] = {
        "id": "rec-1",
        "job": "j",
        "cause": "crash",
        "failed_generation": 1,
        "generation": 2,
        "downtime_ms": 2345.0,
        "from_host": "host-1",
        "to_host": "host-2",
        "started_at": NOW,
        "ended_at": NOW,
        "outcome": "COMPLETED",
        "replayed_records": 120,
        "skipped_lanes": 3,
        "replayed_determinants": 17,
        "phases": [Phase(name="detect", started_at=NOW, duration_ms=900.0)],
    }
    return Recovery(**{**defaults, **more})


def savepoint(name: str, **more: Any) -> Savepoint:
    defaults: dict[str, Any] = {
        "id": f"sp-{name}",
        "job": "j",
        "job_name": "wordcount",
        "name": name,
        "state": "COMPLETED",
        "location": f"/savepoints/{name}",
        "epochs": {"words": 41},
        "version": 1,
        "artifact": "a" * 64,
        "created_at": NOW,
    }
    return Savepoint(**{**defaults, **more})


def host(name: str = "host-1") -> Host:
    return Host(
        id=name,
        name=name,
        state=HostState.READY,
        failure_domain=name,
        slots=2,
        free=1,
        runs=1,
        registered_at=NOW,
        heartbeat_at=NOW,
        versions={"spark": "4.2.1"},
    )
