"""Writes what is decided about standbys (`standbys.tend`), job by job, each in one transaction of the leader's."""

from __future__ import annotations

from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.hosts import HostState, RunOrder
from clonos.resources.jobs import JobState
from clonos.standby.states import StandbyState
from clonos_api.reconcile.orders import standby_order
from clonos_api.reconcile.reading import Place, Scene, waiting_facts
from clonos_api.reconcile.standbys import Add, Drop, Guarded, tend
from clonos_api.store import jobs, runs, standbys
from clonos_api.store.tables import AgentRow, JobRow, RunRow

# An agent whose driver fell starts it again by itself after that, if no standby has taken over.
YIELD_S: Final = 3.0
_log = structlog.get_logger("clonos.reconcile")


def decided(guarded: Guarded, scene: Scene) -> list[Add | Drop]:
    """What is to change about a job's standbys."""
    return tend(guarded, [waiting_facts(*one) for one in scene.standbys.get(guarded.id, [])], scene.fleet)


def yields(guarded: Guarded, run: RunRow | None, changes: list[Add | Drop], scene: Scene) -> float | None:
    """How long the driver's agent is to wait before it starts the driver again; None: as it is.

    Args:
        guarded: The job.
        run: Its driver's.
        changes: What is about to change: nobody waits for a standby that is dropped.
        scene: What there is.
    """
    if run is None or guarded.state is not JobState.RUNNING or run.order["goal"] != "RUN":
        return None
    dropped = {one.run for one in changes if isinstance(one, Drop)}
    standbys = [waiting_facts(*one) for one in scene.standbys.get(guarded.id, [])]
    version = run.order["version"]
    ready = any(one.ready and one.run not in dropped and one.version == version for one in standbys)
    wanted = YIELD_S if ready else 0.0
    return None if run.order["restart"].get("yield_s", 0.0) == wanted else wanted


async def write(
    session: AsyncSession,
    job: JobRow,
    run: RunRow | None,
    changes: list[Add | Drop],
    yield_s: float | None,
    scene: Scene,
    place: Place,
) -> None:
    """Write it.

    Raises:
        Fenced: Somebody changed the job or one of its runs since it was read.
    """
    job = await jobs.change(session, job)
    known = {one.id: (standby, one) for standby, one in scene.standbys.get(job.id, [])}
    told = [run.id] if run is not None and yield_s is not None else []
    await runs.lock(session, [*told, *(one.run for one in changes if isinstance(one, Drop))])
    if run is not None and yield_s is not None:
        order = RunOrder.model_validate(run.order)
        restart = order.restart.model_copy(update={"yield_s": yield_s})
        await runs.order(session, run, order.model_copy(update={"restart": restart}))
    for change in changes:
        match change:
            case Drop():
                standby, dropped = known[change.run]
                order = RunOrder.model_validate(dropped.order)
                if dropped.ended_at is None:  # the run first: so does who takes in what its agent tells
                    await runs.order(session, dropped, order.model_copy(update={"goal": "GONE"}))
                await standbys.move(session, standby, StandbyState.FAILED)
            case Add():
                agent = await session.get(AgentRow, change.agent, populate_existing=True)
                if agent is None or agent.state != HostState.READY:
                    continue
                order = standby_order(job, run, place)
                await runs.create(session, job, agent, order, why=change.why)
                await standbys.create(session, job, order, agent.id, change.why)
        _log.info("standby", job=job.name, change=type(change).__name__.lower(), why=change.why)
