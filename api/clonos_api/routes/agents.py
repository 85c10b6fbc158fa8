"""What agents call: they register, say that they live, wait for work, and tell what their drivers do."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Path, Query
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import AgentReplaced, ClonosError, Fenced, NotFound
from clonos.resources.hosts import (
    AgentRegister,
    AgentRegistered,
    EventsPush,
    Heartbeat,
    HeartbeatAnswer,
    HostState,
    LogPush,
    PieceTaken,
    Pushed,
    Pushes,
    PushesTaken,
    TaskResult,
    Work,
)
from clonos_api import outcomes
from clonos_api.documented import problems
from clonos_api.routes.access import API, AgentCaller, IdPath, changing
from clonos_api.services import Replica, Settings, Store
from clonos_api.store import agents, epochs, logs, pushed, runs, tasks
from clonos_api.store.tables import AgentRow, RunRow

router = APIRouter(prefix=f"{API}/agents", tags=["agents"])

RunPath = Annotated[str, Path(pattern=r"^[0-9a-f-]{36}$", description="Id of a run.")]
TaskPath = Annotated[str, Path(pattern=r"^[0-9a-f-]{36}$", description="Id of a task.")]


@router.post("", status_code=201)
async def register_agent(body: AgentRegister, caller: AgentCaller, store: Store, settings: Settings) -> AgentRegistered:
    """An agent starts. An older process with its name is replaced: all that it says from now on is refused."""
    caller.must_be_agent(body.name)

    async def change(session: AsyncSession) -> AgentRow:
        return await agents.register(session, body, lease_s=settings.agent_lease_s)

    row = await changing(store, caller.actor, change)
    return AgentRegistered(
        id=row.id,
        lease_s=settings.agent_lease_s,
        heartbeat_s=settings.agent_heartbeat_s,
        guarded_heartbeat_s=min(settings.agent_guarded_heartbeat_s, settings.agent_heartbeat_s),
    )


@router.post("/{agent}/heartbeat", responses=problems(410))
async def send_heartbeat(
    agent: IdPath, body: Heartbeat, caller: AgentCaller, replica: Replica, settings: Settings
) -> HeartbeatAnswer:
    """An agent lives, and how its runs are."""
    lives = agents.Lives(settings.agent_lease_s, body.beat_s, body.spares)
    working = sum(one.state != "EXITED" for one in body.runs)
    forward_ms = replica.pace.forward_ms(agent, working)
    if replica.database.dialect == "postgresql":
        # Most tell nothing new: for them two statements will do.
        async with replica.database.statements() as session:
            known = None
            if not await runs.news(session, agent, body.runs):
                known = await agents.unchanged(session, agent, body.instance, lives)
        if known is not None:
            revision, drain = known
            return HeartbeatAnswer(revision=revision, drain=drain, forward_ms=forward_ms)

    async def change(session: AsyncSession) -> AgentRow:
        await runs.report(session, agent, body.runs)
        try:
            return await agents.heartbeat(session, agent, body.instance, lives)
        except (Fenced, NotFound):
            await _check(session, agent, body.instance)  # says which it is; the reports are rolled back
            raise

    row = await changing(replica.database, None, change, told=True)
    return HeartbeatAnswer(revision=row.revision, drain=row.state == HostState.DRAINING, forward_ms=forward_ms)


@router.get("/{agent}/work", responses=problems(410), response_model_exclude_unset=True)
async def get_work(
    agent: IdPath,
    caller: AgentCaller,
    replica: Replica,
    after: Annotated[
        int | None, Query(ge=0, description="The revision that the agent has; it waits for another.")
    ] = None,
    wait_s: Annotated[float, Query(ge=0, le=60, description="How long.")] = 0.0,
) -> Work:
    """All that an agent is to do, as soon as its revision is another one, or at the end of the wait."""
    store = replica.database
    if after is not None:
        async with store.reading() as session:
            row = await _existing(session, agent)
        # What the database says counts; the notifier may not know of the agent yet, or know an older revision.
        if row.revision == after:
            await replica.wait_for_work(caller, agent, after, min(wait_s, replica.settings.limits.wait_s))
    async with store.reading() as session:
        await _existing(session, agent)
        return await runs.work(session, agent)


@router.post("/{agent}/runs/{run}/events", responses=problems(410))
async def push_events(agent: IdPath, run: RunPath, body: EventsPush, caller: AgentCaller, store: Store) -> Pushed:
    """Lines of a run's event file, from a byte offset; the answer says up to where they are known now."""

    async def change(session: AsyncSession) -> int:
        await _run_of(session, agent, run, body.instance)
        return await epochs.ingest(session, run, body.offset, body.lines, gap=body.gap)

    return Pushed(offset=await changing(store, None, change, told=not body.last))


@router.post("/{agent}/pushes", responses=problems(410))
async def push_all(agent: IdPath, body: Pushes, caller: AgentCaller, replica: Replica) -> PushesTaken:
    """What all drivers of an agent wrote, each piece from its byte offset; one that is wrong holds up no other."""

    async def change(session: AsyncSession) -> tuple[PushesTaken, set[str]]:
        await _check(session, agent, body.instance)
        locked = await pushed.lock(
            session, events=[one.run for one in body.events], logs=[one.run for one in body.logs], agent=agent
        )
        told = await epochs.ingest_all(session, locked, body.events)
        logged = await logs.push_all(session, locked, body.logs)
        taken = PushesTaken(
            events=[_taken(piece.run, end) for piece, end in zip(body.events, told, strict=True)],
            logs=[_taken(piece.run, end) for piece, end in zip(body.logs, logged, strict=True)],
        )
        return taken, {locked.runs[one.run].job for one in taken.logs if one.offset is not None}

    async with replica.pushing:
        taken, grown = await changing(replica.database, None, change, told=not any(one.last for one in body.events))
    for job in grown:
        replica.log_watch.grown(job)
    return taken


@router.post("/{agent}/runs/{run}/log", responses=problems(410))
async def push_log(agent: IdPath, run: RunPath, body: LogPush, caller: AgentCaller, replica: Replica) -> Pushed:
    """A piece of a run's log, from a byte offset; the answer says up to where it is known now."""

    async def change(session: AsyncSession) -> tuple[RunRow, int]:
        row = await _run_of(session, agent, run, body.instance)
        return row, await logs.push(session, run, body.offset, body.text, gap=body.gap)

    row, offset = await changing(replica.database, None, change, told=True)
    replica.log_watch.grown(row.job)
    return Pushed(offset=offset)


@router.post("/{agent}/tasks/{task}", status_code=204, responses=problems(410))
async def report_task(agent: IdPath, task: TaskPath, body: TaskResult, caller: AgentCaller, store: Store) -> None:
    """How a task went. Told again, it changes nothing."""

    async def change(session: AsyncSession) -> None:
        await _check(session, agent, body.instance)
        row = await tasks.get(session, task)
        if row.agent != agent:
            raise NotFound(f"Agent {agent} has no task {task}.")
        if await tasks.end(session, row):
            await outcomes.settle(session, row, body)

    await changing(store, None, change)


@router.delete("/{agent}", status_code=204, responses=problems(409, 410))
async def unregister_agent(agent: IdPath, caller: AgentCaller, store: Store) -> None:
    """An agent ends and has ended its drivers."""

    async def change(session: AsyncSession) -> None:
        await agents.remove(session, await _existing(session, agent))

    await changing(store, caller.actor, change)


async def _existing(session: AsyncSession, agent: str) -> AgentRow:
    row = await agents.get(session, agent)
    if row.id != agent:
        raise NotFound(f"There is no agent {agent}.")
    if row.state == HostState.REMOVED:
        raise HTTPException(410, f"Host {row.name} was removed.")
    return row


async def _check(session: AsyncSession, agent: str, instance: str) -> AgentRow:
    row = await _existing(session, agent)
    if row.instance != instance:
        raise AgentReplaced(f"Another process is agent {row.name} now.")
    return row


async def _run_of(session: AsyncSession, agent: str, run: str, instance: str) -> RunRow:
    await _check(session, agent, instance)
    row = await runs.get(session, run)
    if row.agent != agent:
        raise NotFound(f"Agent {agent} has no run {run}.")
    return row


def _taken(run: str, end: int | ClonosError) -> PieceTaken:
    if isinstance(end, ClonosError):
        return PieceTaken(run=run, status=404 if isinstance(end, NotFound) else 422, detail=end.what)
    return PieceTaken(run=run, offset=end)
