"""The facts about standbys that the reconciler reads from the database."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from clonos.resources.hosts import NextRun
from clonos.resources.jobs import JobState
from clonos_api.reconcile.checkpoints import CheckpointLocations
from clonos_api.reconcile.decide import decide
from clonos_api.reconcile.facts import HostFacts
from clonos_api.reconcile.load import load
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.standby_demands import load_standby_demands
from clonos_api.store import jobs, recoveries, runs
from clonos_api.store.columns import plain
from clonos_api.store.db.clock import now
from clonos_api.store.db.database import Database
from clonos_api.store.tables import JobRow, RecoveryRow, RunRow, StandbyRow
from support.stored import job_row, respec, run_row, spec

pytestmark = pytest.mark.anyio

LOCATIONS = CheckpointLocations(Path("/home"), "s3a://shared", "s3a://savepoints")


async def test_failures_of_standbys_of_the_drivers_version_count(database: Database) -> None:
    """A PATCH stores a newer version, which no standby has before the next start."""
    async with database.transaction() as session:
        job = await job_row(session)
        driver, failed = await run_row(session, job), await run_row(session, job)
        respec(job, standby={"replicas": 1})
        job.run, job.version = driver.id, 7
        failed.spec = failed.spec.model_copy(update={"standby": True})
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
            spec = plain(row.spec)
            spec["spec"] |= {"standby": {"replicas": 1}, **inner}
            await session.execute(update(JobRow).where(JobRow.id == row.id).values(spec=spec))
    async with database.reading() as session:
        snapshot = await load(session)
        demands = await load_standby_demands(session, snapshot, LOCATIONS)
    ids = {demand.id for demand, _ in demands}
    assert job.id in ids
    assert broken.id not in ids


@pytest.mark.parametrize(
    "bad",
    [
        {"moving": {"cause": "unknown"}},
        {"stop": {"mode": "unknown"}},
        {"start_from": {"unknown": 1}},
        {"spec": {"unknown": 1}},
        {"failure": {"codes": "none"}},
        {"failure": {"codes": ["a"], "unknown": 1}},
    ],
    ids=lambda bad: next(iter(bad)),
)
async def test_a_bad_row_of_one_job_does_not_stop_the_round_of_the_others(
    database: Database, bad: dict[str, Any]
) -> None:
    async with database.transaction() as session:
        broken, job = await job_row(session), await job_row(session)
        runs_of = [await run_row(session, broken), await run_row(session, job)]
        for row, run in zip((broken, job), runs_of, strict=True):
            await session.execute(update(JobRow).where(JobRow.id == row.id).values(state="STARTING", run=run.id))
        of_run = {name: value for name, value in bad.items() if name in ("spec", "failure")}
        if of_run:
            await session.execute(update(RunRow).where(RunRow.id == runs_of[0].id).values(**of_run))
        else:
            await session.execute(update(JobRow).where(JobRow.id == broken.id).values(**bad))
    async with database.reading() as session:
        cases = (await load(session)).cases
    assert job.id in {case.job.id for case in cases}
    assert broken.id not in {case.job.id for case in cases}, "it is left as it is"


async def test_the_planners_of_epochs_in_doubt_are_read_from_the_runs_that_matter(database: Database) -> None:
    async with database.transaction() as session:
        job = await job_row(session)
        for version in (1, 2):
            job = await jobs.patch(session, job, version=version, spec=spec(job.name, v=str(version)), by="ada")
        failure = {"error": "job-code-failed", "what": "It raised.", "domain": "user"}
        refused = {"error": "checkpoint-mismatch", "what": "The code changed.", "codes": ["one", "two", "none"]}
        driver = ""
        for version, code, failed in ((1, "one", failure), (2, "two", None), (3, "three", refused)):
            run = await run_row(session, job)
            values = {"spec": run.spec.model_copy(update={"version": version}), "failure": failed}
            values |= {"ingest_state": {"code": code}}
            await session.execute(update(RunRow).where(RunRow.id == run.id).values(**values))
            driver = run.id
        other = await run_row(session, job)  # another run that this round need not read
        await session.execute(update(RunRow).where(RunRow.id == other.id).values(failure={"unknown": 1}))
        await session.execute(update(JobRow).where(JobRow.id == job.id).values(state="STARTING", run=driver))
    async with database.reading() as session:
        case = next(case for case in (await load(session)).cases if case.job.id == job.id)
    assert (case.planned_by, case.unable) == ((1, 2, None), {1})


async def begin(database: Database, *, seconds_ago: float) -> RecoveryRow:
    """Begin a recovery of a job that has one standby."""
    async with database.transaction() as session:
        job = await job_row(session)
        await run_row(session, job)
        respec(job, standby={"replicas": 1})
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


async def test_a_job_whose_next_version_was_removed_fails_and_says_so(database: Database) -> None:
    """Otherwise each round ends with the same error, and the job waits for ever."""
    async with database.transaction() as session:
        job = await job_row(session)
        run = await run_row(session, job)
        run = await runs.change_spec(session, run, desired="ABSENT", next=NextRun(version=9))
        await session.execute(update(JobRow).where(JobRow.id == job.id).values(state="RECOVERING", run=run.id))
    async with database.reading() as session:
        snapshot = await load(session)
    case = next(case for case in snapshot.cases if case.job.id == job.id)
    fleet = Fleet([HostFacts(id="a", name="a", slots=4)])
    state = decide(*case.facts(LOCATIONS), fleet, snapshot.now).job.state
    assert state is not None
    assert state.failure is not None
    assert (state.to, state.failure.error) == (JobState.FAILED, "not-found")
    assert f"clonos job start {job.name}" in state.failure.hint
