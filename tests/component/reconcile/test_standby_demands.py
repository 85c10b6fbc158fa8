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
from clonos_api.store.tables import JobRow, RecoveryRow, RunRow, StandbyRow
from support.stored import job_row, run_row

pytestmark = pytest.mark.anyio

LOCATIONS = CheckpointLocations(Path("/home"), "s3a://shared", "s3a://savepoints")


async def test_failures_of_standbys_of_the_drivers_version_count(database: Database) -> None:
    """A PATCH stores a newer version, which no standby has before the next start."""
    async with database.transaction() as session:
        job = await job_row(session)
        driver, failed = await run_row(session, job), await run_row(session, job)
        order = {**failed.order, "standby": True}
        spec = {**job.spec, "spec": {**job.spec["spec"], "standby": {"replicas": 1}}}
        await session.execute(update(JobRow).where(JobRow.id == job.id).values(spec=spec, run=driver.id, version=7))
        await session.execute(update(RunRow).where(RunRow.id == failed.id).values(order=order))
        row = StandbyRow(id=failed.id, job=job.id, host=failed.host, mode="dedicated", state="FAILED", body={})
        row.since = await now(session)
        session.add(row)
    async with database.reading() as session:
        snapshot = await load(session)
        demands = await load_standby_demands(session, snapshot, LOCATIONS)
    assert {demand.id: demand.failed_recently for demand, _ in demands}[job.id] == 1


async def test_a_job_that_cannot_be_read_does_not_stop_the_others(database: Database) -> None:
    """Another version of Clonos stored a field that this one does not know."""
    async with database.transaction() as session:
        broken, job = await job_row(session), await job_row(session)
        for row, inner in ((broken, {"unknown": 1}), (job, {})):
            spec = {**row.spec, "spec": {**row.spec["spec"], "standby": {"replicas": 1}, **inner}}
            await session.execute(update(JobRow).where(JobRow.id == row.id).values(spec=spec))
    async with database.reading() as session:
        snapshot = await load(session)
        demands = await load_standby_demands(session, snapshot, LOCATIONS)
    ids = {demand.id for demand, _ in demands}
    assert job.id in ids
    assert broken.id not in ids


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
