"""Copies of checkpoints: which agent makes and deletes them, and what becomes of them when nobody does."""

from __future__ import annotations

from clonos.resources.hosts import HostState
from clonos_api.reconcile.reading import Place
from clonos_api.store import operations, savepoints, tasks
from clonos_api.store.rows import new_id
from clonos_api.store.tables import AgentRow, JobRow, OperationRow, SavepointRow
from sqlalchemy.ext.asyncio import AsyncSession


async def begin_save(session: AsyncSession, job: JobRow, agent: str, checkpoint: str, place: Place) -> SavepointRow:
    """Have an agent copy the checkpoint of a job that was stopped."""
    name = f"stop-{new_id()[:13]}"
    row = await savepoints.create(session, job, name=name, location=place.savepoints)
    stops = [one for one in await operations.open_of_job(session, job.id) if one.kind in ("stop", "restart")]
    await save(session, row, agent, checkpoint, stops[-1].id if stops else None)
    return row
