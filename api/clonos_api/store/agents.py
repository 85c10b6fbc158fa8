"""Agents: one a host. A heartbeat extends the host's lease by the database's clock and touches nothing else.

Events: ``agent.registered``, ``agent.back``, ``agent.lost``, ``agent.drained``, ``agent.undrained``, ``agent.removed``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import Fenced, StateConflict
from clonos.resources.hosts import AgentRegister, HostState
from clonos_api.store import audit, events
from clonos_api.store.clock import clock, now
from clonos_api.store.closing import at_the_end
from clonos_api.store.notifier import wakes
from clonos_api.store.rows import found, insert_new, new_id
from clonos_api.store.swap import swap
from clonos_api.store.tables import AgentRow, RunRow

_ALIVE = (HostState.READY, HostState.DRAINING)
_BUMPED: Final = "clonos.bumped"
_BUMP_FIRST: Final = 5


@dataclass(frozen=True)
class Lives:
    """What a heartbeat says of a host.

    Attributes:
        lease_s: It is heard of for so long.
        beat_s: The next one comes within about so long.
        spares: Warm drivers without a job that it has.
    """

    lease_s: float
    beat_s: float = 1.0
    spares: int = 0

    @property
    def columns(self) -> dict[str, Any]:
        """Of its row."""
        return {
            "heartbeat_at": clock(),
            "beat_s": self.beat_s,
            "spares": self.spares,
            "lease_until": clock(self.lease_s),
        }


async def register(session: AsyncSession, body: AgentRegister, *, lease_s: float) -> AgentRow:
    """An agent has started, or does not know whether it registered: it has a lease from now on.

    The newest process with a name is the agent; an older one gets `Fenced` and stops.

    Raises:
        Fenced: Two registered with one new name at the same moment; this one tries again.
    """
    columns = {
        "instance": body.instance,
        "failure_domain": body.failure_domain or body.name,
        "slots": body.slots,
        "versions": body.versions,
        "labels": body.labels,
        "limits": body.limits,
        **Lives(lease_s).columns,
    }
    query = select(AgentRow).where(AgentRow.name == body.name).with_for_update()
    known = (await session.scalars(query)).one_or_none()
    if known is None:
        row = await insert_new(
            session,
            AgentRow,
            id=new_id(),
            name=body.name,
            state=HostState.READY,
            registered_at=clock(),
            **columns,
        )
        if row is None:
            raise Fenced(f"Another agent registered as {body.name} at this moment.")
    else:
        removed = known.state == HostState.REMOVED
        drained = known.drained and not removed
        same = known.instance == body.instance and not removed
        if not same:
            columns["registered_at"] = clock()
        row = await swap(session, known, state=_present(drained), drained=drained, **columns)
        if same:
            return row
    events.append(session, "agent.registered", agent=row.id, data={"name": row.name, "instance": row.instance})
    return row


async def heartbeat(session: AsyncSession, agent: str, instance: str, lives: Lives) -> AgentRow:
    """Extend the lease of an agent. Report its runs first (`runs.report`): locks are taken in that order.

    Raises:
        NotFound: There is no such agent, or it was removed: it registers again.
        Fenced: Another process has its name now.
    """
    statement = (
        update(AgentRow)
        .where(AgentRow.id == agent, AgentRow.instance == instance, AgentRow.state != HostState.REMOVED)
        .values(**lives.columns)
        .returning(AgentRow)
        .execution_options(synchronize_session=False, populate_existing=True)
    )
    row = (await session.scalars(statement)).one_or_none()
    if row is None:
        row = await check(session, agent, instance)
    if row.state == HostState.LOST:
        row = await swap(session, row, state=_present(row.drained))
        events.append(session, "agent.back", agent=row.id, data={"name": row.name})
    return row


async def unchanged(session: AsyncSession, agent: str, instance: str, lives: Lives) -> tuple[int, bool] | None:
    """Extend the lease of an agent that is no news itself; its revision and whether it is drained, else None."""
    statement = (
        update(AgentRow)
        .where(AgentRow.id == agent, AgentRow.instance == instance, AgentRow.state.in_(_ALIVE))
        .values(**lives.columns)
        .returning(AgentRow.revision, AgentRow.state)
        .execution_options(synchronize_session=False)
    )
    row = (await session.execute(statement)).one_or_none()
    return None if row is None else (row.revision, row.state == HostState.DRAINING)


async def check(session: AsyncSession, agent: str, instance: str) -> AgentRow:
    """The agent, if this process is it.

    Raises:
        NotFound: There is no such agent, or it was removed.
        Fenced: Another process has its name now.
    """
    row = await session.get(AgentRow, agent, populate_existing=True)
    row = found(row if row is None or row.state != HostState.REMOVED else None, f"agent {agent}")
    if row.instance != instance:
        raise Fenced(f"Another process is agent {row.name} now.", hint="stop this one, or give it a name of its own.")
    return row


async def get(session: AsyncSession, agent: str) -> AgentRow:
    """An agent by its id or name.

    Raises:
        NotFound: There is none.
    """
    query = select(AgentRow).where((AgentRow.id == agent) | (AgentRow.name == agent))
    rows = (await session.scalars(query.execution_options(populate_existing=True))).all()
    return found(min(rows, key=lambda row: row.id != agent, default=None), f"host {agent!r}")


async def every(session: AsyncSession, *, removed: bool = False) -> list[AgentRow]:
    """All agents by name."""
    query = select(AgentRow).order_by(AgentRow.name)
    if not removed:
        query = query.where(AgentRow.state != HostState.REMOVED)
    return list(await session.scalars(query))


async def loads(session: AsyncSession) -> dict[str, int]:
    """Agent id → runs that it has, those that it is to end too."""
    query = select(RunRow.agent, func.count()).where(RunRow.ended_at.is_(None)).group_by(RunRow.agent)
    return dict((await session.execute(query)).all())


async def lose_expired(session: AsyncSession) -> list[AgentRow]:
    """Mark agents lost whose lease is over by the database's clock; these agents."""
    statement = (
        update(AgentRow)
        .where(AgentRow.state.in_(_ALIVE), AgentRow.lease_until < clock())
        .values(state=HostState.LOST, token=AgentRow.token + 1)
        .returning(AgentRow)
        .execution_options(synchronize_session=False, populate_existing=True)
    )
    rows = list(await session.scalars(statement))
    for row in rows:
        data = {"name": row.name, "heartbeat_at": row.heartbeat_at.isoformat()}
        events.append(session, "agent.lost", agent=row.id, data=data)
    return rows


async def drain(session: AsyncSession, agent: AgentRow, drained: bool) -> AgentRow:
    """Give an agent nothing new any more, or again.

    Raises:
        Fenced: Somebody changed it since.
    """
    state = _present(drained) if agent.state in _ALIVE else agent.state
    row = await swap(session, agent, drained=drained, state=state)
    what = "drained" if drained else "undrained"
    events.append(session, f"agent.{what}", agent=row.id, data={"name": row.name})
    await audit.asked(session, f"host.{what}", row.id, name=row.name)
    return row


async def remove(session: AsyncSession, agent: AgentRow) -> AgentRow:
    """Forget an agent. Its runs that were lost count as ended.

    Raises:
        StateConflict: It has runs.
        Fenced: Somebody changed it since.
    """
    runs = (await session.scalars(select(RunRow).where(RunRow.agent == agent.id, RunRow.ended_at.is_(None)))).all()
    if any(run.state != "LOST" for run in runs):
        raise StateConflict(f"Host {agent.name} has {len(runs)} runs.", hint="drain it first.")
    moment = await now(session)
    for run in sorted(runs, key=lambda one: one.id):
        await swap(session, run, ended_at=moment)
    row = await swap(session, agent, state=HostState.REMOVED, drained=False)
    events.append(session, "agent.removed", agent=row.id, data={"name": row.name})
    await audit.asked(session, "host.remove", row.id, name=row.name)
    return row


def bump(session: AsyncSession, agent: str) -> None:
    """Have an agent look at its work when this transaction commits. `runs` and `tasks` do it by themselves.

    At its end, and all agents at once: a heartbeat that has a run's row must not wait for us who wait for that row.
    """
    session.info.setdefault(_BUMPED, set()).add(agent)
    at_the_end(session, _BUMP_FIRST, _bump)


async def _bump(session: AsyncSession) -> None:
    statement = (
        update(AgentRow)
        .where(AgentRow.id.in_(sorted(session.info.pop(_BUMPED))))
        .values(revision=AgentRow.revision + 1)
        .returning(AgentRow.id, AgentRow.revision)
        .execution_options(synchronize_session=False)
    )
    for agent, revision in await session.execute(statement):
        wakes(session, revision, agent)


def _present(drained: bool) -> HostState:
    return HostState.DRAINING if drained else HostState.READY
