"""REST routes for agents: registration, heartbeat, long poll for work, and pushes of events and logs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from fastapi.routing import APIRoute
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import AgentReplaced, ClonosError, ConcurrentUpdate, NotFound
from clonos.resources.hosts import (
    BatchResult,
    Heartbeat,
    HeartbeatResponse,
    HostRegister,
    HostRegistered,
    HostState,
    Push,
    PushResult,
    TaskResult,
    Work,
)
from clonos_api.auth.requirements import principal_of
from clonos_api.replica import AcceptedHeartbeat, DatabaseDep, Replica, ReplicaDep, SettingsDep, replica_of
from clonos_api.routes.access import API, AgentCaller, IdPath, changing
from clonos_api.routes.documented import problems
from clonos_api.store import epochs, hosts, logs, outcomes, pushed, runs, tasks
from clonos_api.store.db.bulk import together
from clonos_api.store.db.database import Origin
from clonos_api.store.tables import HostRow

router = APIRouter(prefix=f"{API}/hosts", tags=["hosts"])

TaskPath = Annotated[str, Path(pattern=r"^[0-9a-f-]{36}$", description="Id of a task.")]


@router.post("", status_code=201)
async def register_host(
    body: HostRegister, caller: AgentCaller, database: DatabaseDep, settings: SettingsDep
) -> HostRegistered:
    """Register a host by its agent. An older agent process with the same name is refused from now on."""
    caller.must_be_agent(body.name)

    async def change(session: AsyncSession) -> HostRow:
        return await hosts.register(session, body, lease_s=settings.host_lease_s)

    row = await changing(database, caller.actor, change)
    return HostRegistered(
        id=row.id,
        lease_s=settings.host_lease_s,
        heartbeat_s=settings.host_heartbeat_s,
        standby_heartbeat_s=min(settings.standby_heartbeat_s, settings.host_heartbeat_s),
    )


async def send_heartbeat(
    host: IdPath, body: Heartbeat, caller: AgentCaller, replica: ReplicaDep, settings: SettingsDep, request: Request
) -> HeartbeatResponse:
    """Renew the lease of a host, and report the state of its runs."""
    lease_s = hosts.extended_lease_s(
        settings.host_lease_s, planned_s=settings.host_heartbeat_s, announced_s=body.heartbeat_interval_s
    )
    lives = hosts.Liveness(lease_s, body.heartbeat_interval_s, body.pool_available, body.capacity)
    working = sum(run.state != "EXITED" for run in body.runs)
    # Most heartbeats report no change: two statements are enough for them, and one if they repeat the previous one.
    known = await hosts.beat(replica.database, host, body.instance, lives) if body.capacity is None else None
    if known is not None:
        async with replica.database.reading(origin=Origin.AGENT) as session:
            changed = await runs.news(session, host, body.runs)
        if not changed:
            identity = _identity(request, await request.body())
            replica.heartbeats[host] = AcceptedHeartbeat(identity, body.instance, lives, working, known.runs)
            return _heartbeat_response(replica, host, known.revision, known.state, working)

    async def change(session: AsyncSession) -> HostRow:
        await runs.report(session, host, body.runs)
        try:
            return await hosts.heartbeat(session, host, body.instance, lives)
        except (ConcurrentUpdate, NotFound):
            await _check(session, host, body.instance)  # raises the precise error; the reports are rolled back
            raise

    row = await changing(replica.database, None, change, origin=Origin.AGENT)
    return _heartbeat_response(replica, host, row.revision, row.state, working)


def _heartbeat_response(replica: Replica, host: str, revision: int, state: str, working: int) -> HeartbeatResponse:
    push_interval_ms = replica.push_interval.push_interval_ms(host, working)
    return HeartbeatResponse(revision=revision, drain=state == HostState.DRAINING, push_interval_ms=push_interval_ms)


def _identity(request: Request, body: bytes) -> tuple[object, ...]:
    """Return all of a request that decides whether it is accepted."""
    return principal_of(request), request.scope["query_string"], request.headers.get("content-type"), body


class _RepeatedHeartbeats(APIRoute):
    """Answers a heartbeat that repeats the previous one of its host with one statement.

    It needs no parsing and no further checks, because an equal request of the same principal has passed them.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of the route."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            replica, host = replica_of(request), request.path_params["host"]
            last = replica.heartbeats.pop(host, None)
            if last is not None and last.identity == _identity(request, await request.body()):
                known = await hosts.beat(replica.database, host, last.instance, last.lives)
                if known is not None and known.runs == last.runs:
                    replica.heartbeats[host] = last
                    answer = _heartbeat_response(replica, host, known.revision, known.state, last.working)
                    return Response(answer.model_dump_json(), media_type="application/json")
            return await handler(request)

        return handle


router.add_api_route(
    "/{host}/heartbeat",
    send_heartbeat,
    methods=["POST"],
    responses=problems(410),
    route_class_override=_RepeatedHeartbeats,
)


@router.get("/{host}/work", responses=problems(410), response_model_exclude_unset=True)
async def get_work(
    host: IdPath,
    caller: AgentCaller,
    replica: ReplicaDep,
    after: Annotated[
        int | None, Query(ge=0, description="The revision that the agent has; the response waits for another one.")
    ] = None,
    wait_s: Annotated[float, Query(ge=0, le=60, description="Longest wait in seconds.")] = 0.0,
) -> Work:
    """Get the work of a host (its runs and host tasks), as soon as its revision changes or the wait is over."""
    database = replica.database
    if after is not None:
        async with database.reading(origin=Origin.AGENT) as session:
            row = await _existing(session, host)
        # The database is authoritative: the notifier may have an older revision, or none.
        if row.revision == after:
            await replica.wait_for_work(caller, host, after, min(wait_s, replica.settings.limits.wait_s))
    async with database.reading(origin=Origin.AGENT) as session:
        await _existing(session, host)
        return await runs.work(session, host)


@router.post("/{host}/push", responses=problems(410))
async def push_all(host: IdPath, body: Push, caller: AgentCaller, replica: ReplicaDep) -> PushResult:
    """Push new events and log text of an agent's drivers, in batches that each begin at a byte offset.

    A refused batch does not affect the others.
    """

    async def change(session: AsyncSession) -> tuple[PushResult, set[str]]:
        with_events, with_logs = [batch.run for batch in body.events], [batch.run for batch in body.logs]
        locked = await pushed.lock(session, events=with_events, logs=with_logs, agent=(host, body.instance))
        if not locked.runs or any(run not in locked.runs for run in (*with_events, *with_logs)):
            await _check(session, host, body.instance)  # another agent, or a run of another host
        async with together(session):
            ends = await epochs.ingest_all(session, locked, body.events)
            logged = await logs.push_all(session, locked, body.logs)
            await pushed.write(session, locked)
        taken = PushResult(
            events=[_taken(batch.run, end) for batch, end in zip(body.events, ends, strict=True)],
            logs=[_taken(batch.run, end) for batch, end in zip(body.logs, logged, strict=True)],
        )
        return taken, {locked.runs[result.run].job for result in taken.logs if result.offset is not None}

    # An agent does not keep the events of a driver that has ended: it cannot send the last ones again.
    origin = Origin.USER if any(batch.last for batch in body.events) else Origin.AGENT
    async with replica.pushing:
        taken, grown = await changing(replica.database, None, change, origin=origin)
    for job in grown:
        replica.log_watch.grown(job)
    return taken


@router.post("/{host}/tasks/{task}", status_code=204, responses=problems(410))
async def report_task(
    host: IdPath, task: TaskPath, body: TaskResult, caller: AgentCaller, database: DatabaseDep
) -> None:
    """Report the result of a host task. A repeated report changes nothing."""

    async def change(session: AsyncSession) -> None:
        await _check(session, host, body.instance)
        row = await tasks.get(session, task)
        if row.host != host:
            raise NotFound(f"Agent {host} has no task {task}.")
        if await tasks.end(session, row):
            await outcomes.settle(session, row, body)

    await changing(database, None, change)


@router.post("/{host}/leave", status_code=204, responses=problems(409, 410))
async def unregister_host(host: IdPath, caller: AgentCaller, database: DatabaseDep) -> None:
    """Unregister the host of an agent that exits, after its drivers have exited."""

    async def change(session: AsyncSession) -> None:
        await hosts.remove(session, await _existing(session, host))

    await changing(database, caller.actor, change)


async def _existing(session: AsyncSession, host: str) -> HostRow:
    row = await hosts.get(session, host)
    if row.id != host:
        raise NotFound(f"There is no host {host}.")
    if row.state == HostState.REMOVED:
        raise HTTPException(410, f"Host {row.name} was removed.")
    return row


async def _check(session: AsyncSession, host: str, instance: str) -> HostRow:
    row = await _existing(session, host)
    if row.instance != instance:
        raise AgentReplaced(f"Another process has registered as agent {row.name}.")
    return row


def _taken(run: str, end: int | ClonosError) -> BatchResult:
    if isinstance(end, ClonosError):
        return BatchResult(run=run, status=404 if isinstance(end, NotFound) else 422, detail=end.what)
    return BatchResult(run=run, offset=end)
