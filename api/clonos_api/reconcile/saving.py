"""Copies of checkpoints: which agent makes and deletes them, and what becomes of those that nobody finishes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.hosts import HostState
from clonos.resources.jobs import Failure
from clonos_api.reconcile import checkpoints
from clonos_api.reconcile.reading import Place
from clonos_api.store import savepoints, tasks
from clonos_api.store.rows import new_id
from clonos_api.store.tables import AgentRow, JobRow, SavepointRow

# A savepoint in these waits for an agent.
UNDER_WAY: Final = frozenset({"IN_PROGRESS", "DELETING"})


async def begin_save(session: AsyncSession, job: JobRow, agent: str, checkpoint: str, place: Place) -> SavepointRow:
    """Have an agent copy the checkpoint of a job whose driver has ended; the stop itself waits for it."""
    row = await savepoints.create(session, job, name=f"stop-{new_id()}", location=place.savepoints)
    return await copy(session, row, agent, checkpoint)


async def copy(
    session: AsyncSession, savepoint: SavepointRow, agent: str, checkpoint: str, operation: str | None = None
) -> SavepointRow:
    """Have an agent copy a checkpoint into the folder of a savepoint."""
    arguments = {"savepoint": savepoint.id, "location": checkpoint, "target": savepoint.location}
    await tasks.create(session, agent, "savepoint", arguments, operation=operation)
    return savepoint


async def remove(session: AsyncSession, savepoint: SavepointRow, agent: str, operation: str | None) -> None:
    """Have an agent delete the files of a savepoint."""
    arguments = {"savepoint": savepoint.id, "location": savepoint.location}
    await tasks.create(session, agent, "delete-savepoint", arguments, operation=operation)


async def give_up(
    session: AsyncSession, savepoint: SavepointRow, agents: Iterable[str], failure: Failure
) -> SavepointRow:
    """Nobody copied or deleted it in time: what an agent tells of it from now on does not count."""
    for agent in sorted(set(agents)):
        for task in await tasks.open_of_agent(session, agent):
            if task.arguments.get("savepoint") == savepoint.id:
                await tasks.end(session, task)
    return await savepoints.fail(session, savepoint, failure) if savepoint.state in UNDER_WAY else savepoint


def agent_for(job: JobRow, run_agent: str | None, hosts: Iterable[AgentRow], where: str, place: Place) -> str | None:
    """The agent that sees the job's checkpoint, or the savepoint, at `where`; None: none that is heard of."""
    alive = {host.id: host.name for host in hosts if host.state in (HostState.READY, HostState.DRAINING)}
    for agent in (run_agent, job.home):
        if agent in alive:
            return agent
    if checkpoints.is_local(where, place.shared) and (run_agent or job.home):
        return None
    return min(alive, key=lambda one: alive[one], default=None)
