"""The facts about standbys that the reconciler reads from the database."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from clonos_api.reconcile.checkpoints import CheckpointLocations
from clonos_api.reconcile.load import load
from clonos_api.reconcile.standby_demands import load_standby_demands
from clonos_api.store import recoveries
from clonos_api.store.db.clock import now
from clonos_api.store.db.database import Database
from clonos_api.store.tables import JobRow, RecoveryRow
from support.stored import job_row, run_row

pytestmark = pytest.mark.anyio

LOCATIONS = CheckpointLocations(Path("/home"), "s3a://shared", "s3a://savepoints")


async def begin(database: Database, *, seconds_ago: float) -> RecoveryRow:
    """Begin a recovery of a job that has one standby."""
    async with database.transaction() as session:
        job = await job_row(session)
        await run_row(session, job)
        spec = {**job.spec, "spec": {**job.spec["spec"], "standby": {"replicas": 1}}}
        await session.execute(update(JobRow).where(JobRow.id == job.id).values(spec=spec))
        at = await now(session) - timedelta(seconds=seconds_ago)
        return await recoveries.begin(session, job.id, from_host="a", cause="crash", failed_generation=2, at=at)


async def recovery_open(database: Database, job: str) -> bool:
    async with database.reading() as session:
        snapshot = await load(session, heartbeats_valid=True)
        demands = await load_standby_demands(session, snapshot, LOCATIONS)
    return {demand.id: demand.recovery_open for demand, _ in demands}[job]


async def test_a_recovery_counts_until_it_ends_or_takes_long(database: Database) -> None:
    recent, long = await begin(database, seconds_ago=5), await begin(database, seconds_ago=60)
    assert await recovery_open(database, recent.job)
    assert not await recovery_open(database, long.job)
    async with database.transaction() as session:
        await recoveries.end(session, await session.get_one(RecoveryRow, recent.id), "COMPLETED")
    assert not await recovery_open(database, recent.job)
