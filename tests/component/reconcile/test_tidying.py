"""The leader ends rows that no other part of the service ends."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from clonos.resources.hosts import RunReport
from clonos.resources.jobs import JobState
from clonos.standby.states import StandbyState
from clonos_api.reconcile import ending
from clonos_api.reconcile.tidying import tidy
from clonos_api.store import events, hosts, jobs, operations, recoveries, runs, savepoints, standbys, tasks
from clonos_api.store.db.clock import now
from clonos_api.store.db.database import Database
from clonos_api.store.tables import HostRow, JobRow, OperationRow, RecoveryRow, RunRow, SavepointRow, StandbyRow
from support.stored import EventFile, host_row, ingest, job_row, run_row, run_spec

pytestmark = pytest.mark.anyio


async def a_savepoint(database: Database, state: str, *, job_state: str = "RUNNING") -> SavepointRow:
    async with database.transaction() as session:
        job = await job_row(session)
        await session.execute(update(JobRow).where(JobRow.id == job.id).values(state=job_state))
        row = await savepoints.create(session, job, name="one", location="/save")
        if state == "DELETING":
            row = await savepoints.complete(session, row, epochs={"out": 1}, size_bytes=1)
            row = await savepoints.begin_delete(session, row)
        return row


async def tidied(database: Database) -> int:
    async with database.transaction() as session:
        return await tidy(session)


async def again(database: Database, savepoint: SavepointRow) -> SavepointRow:
    async with database.reading() as session:
        return await savepoints.get(session, savepoint.id)


@pytest.mark.parametrize("state", ["IN_PROGRESS", "DELETING"])
async def test_a_savepoint_that_nobody_waits_for_fails(database: Database, state: str) -> None:
    row = await a_savepoint(database, state)
    async with database.transaction() as session:
        agent = await host_row(session)
        task = await tasks.create(session, agent.id, "savepoint", {"savepoint": row.id, "location": "/x"})
    assert await tidied(database) == 2
    row = await again(database, row)
    assert row.state == "FAILED"
    assert row.failure.error == "savepoint-given-up"
    async with database.reading() as session:
        assert (await tasks.get(session, task.id)).ended_at is not None
    assert await tidied(database) == 0
    async with database.transaction() as session:  # it can still be deleted
        assert (await savepoints.begin_delete(session, await savepoints.get(session, row.id))).failure is None


@pytest.mark.parametrize("state", ["IN_PROGRESS", "DELETING"])
async def test_a_savepoint_that_an_operation_or_a_stop_waits_for_is_left(database: Database, state: str) -> None:
    row, of_stop = await a_savepoint(database, state), await a_savepoint(database, state, job_state="STOPPING")
    async with database.transaction() as session:
        kind = "savepoint" if state == "IN_PROGRESS" else "delete-savepoint"
        made = await operations.begin(
            session, kind, job=row.job, arguments={"savepoint": row.id}, timeout_s=60, by="ada"
        )
        agent = await host_row(session)
        await tasks.create(session, agent.id, kind, {"savepoint": row.id}, operation=made.id)
    assert await tidied(database) == 0
    assert (await again(database, row)).state == (await again(database, of_stop)).state == state


@pytest.mark.parametrize("state", ["IN_PROGRESS", "DELETING"])
async def test_the_deadline_of_an_operation_is_its_savepoints(database: Database, state: str) -> None:
    row = await a_savepoint(database, state)
    async with database.transaction() as session:
        kind = "savepoint" if state == "IN_PROGRESS" else "delete-savepoint"
        made = await operations.begin(
            session, kind, job=row.job, arguments={"savepoint": row.id}, timeout_s=-1, by="ada"
        )
        agent = await host_row(session)  # its agent does not respond
        task = await tasks.create(session, agent.id, kind, {"savepoint": row.id}, operation=made.id)
    async with database.transaction() as session:
        assert await ending.expire(session) == 1
    async with database.reading() as session:
        assert (await operations.get(session, made.id)).state == "FAILED"
        assert (await tasks.get(session, task.id)).ended_at is not None
    row = await again(database, row)
    assert (row.state, row.failure.error) == ("FAILED", "operation-timed-out")


async def a_recovery(database: Database, *, state: str = "RUNNING", since_s: float = 0.0, **begun: Any) -> RecoveryRow:
    """A recovery of a job that runs in generation 2 and has reported two epochs."""
    async with database.transaction() as session:
        job = await job_row(session)
        run = await run_row(session, job)
        file = EventFile()
        file.start(1)
        file.epoch(0)
        file.start(2)
        file.epoch(1)
        await ingest(session, run.id, 0, file.lines)
        at = datetime.fromtimestamp(file.at, (await now(session)).tzinfo) + timedelta(seconds=begun.pop("after_s", 1))
        since = await now(session) - timedelta(seconds=since_s)
        await session.execute(update(JobRow).where(JobRow.id == job.id).values(state=state, state_since=since))
        return await recoveries.begin(
            session, job.id, from_host="a", at=at, **{"cause": "crash", "failed_generation": 2, **begun}
        )


async def test_an_epoch_that_is_reported_at_the_same_time_ends_the_recovery(database: Database) -> None:
    row = await a_recovery(database, failed_generation=2, after_s=-0.01)  # otherwise OVERTAKEN
    async with database.transaction() as session:
        await recoveries.lock_job(session, row.job)
        tidying = asyncio.create_task(tidied(database))
        done, _ = await asyncio.wait({tidying}, timeout=0.3)
        assert not done, "it waits for the job's row"
        await recoveries.end(session, await session.get_one(RecoveryRow, row.id), "COMPLETED")
    assert await tidying == 0
    async with database.reading() as session:
        assert (await session.get_one(RecoveryRow, row.id)).body.outcome == "COMPLETED"


@pytest.mark.parametrize(
    ("how", "outcome"),
    [
        ({}, None),  # the epoch may still arrive
        ({"state": "RECOVERING", "since_s": 10_000}, None),  # that state has its own deadline
        ({"since_s": 1_000}, "IDLE"),
        ({"state": JobState.STOPPED}, "ABANDONED"),
        # The agent's report arrived after the driver's events: generation 2 has finished an epoch since.
        ({"failed_generation": 1, "after_s": -0.01}, "OVERTAKEN"),
        ({"failed_generation": 2, "after_s": -0.01}, "OVERTAKEN"),
        ({"failed_generation": 2, "after_s": -0.01, "state": "RECOVERING"}, None),  # an epoch of the failed generation
    ],
)
async def test_each_recovery_ends(database: Database, how: dict[str, Any], outcome: str | None) -> None:
    row = await a_recovery(database, **how)
    assert await tidied(database) == (outcome is not None)
    async with database.reading() as session:
        recovery = await recoveries.get(session, row.job, row.id)
        assert (recovery.ended_at is not None) == (outcome is not None)
        assert recovery.body.outcome == outcome
        ended_events = await events.after(session, 0, types=["job.recovery.ended"], job=row.job)
        assert [event.data["outcome"] for event in ended_events[1:]] == ([outcome] if outcome else [])
    async with database.reading() as session:
        assert (await jobs.get(session, row.job)).generation == 2


@pytest.mark.parametrize("under_way", [True, False])
async def test_the_record_of_a_move_waits_for_the_standby(database: Database, under_way: bool) -> None:
    row = await a_recovery(database, cause="move", after_s=-0.01)
    if under_way:
        async with database.transaction() as session:
            await session.execute(update(JobRow).where(JobRow.id == row.job).values(moving={"cause": "move"}))
    assert await tidied(database) == (not under_way)


@pytest.mark.parametrize("desired", ["ABSENT", "RUNNING"])
@pytest.mark.parametrize("lost", [True, False])
async def test_what_a_lost_host_was_to_end_counts_as_lost(database: Database, desired: str, lost: bool) -> None:
    async with database.transaction() as session:
        agent = await host_row(session)
        run = await run_row(session, host=agent)
        await runs.change_spec(session, run, desired=desired)
        if lost:
            await session.execute(update(HostRow).where(HostRow.id == agent.id).values(state="LOST"))
    unwanted = lost and desired == "ABSENT"
    assert await tidied(database) == unwanted
    async with database.transaction() as session:
        assert ((await runs.get(session, run.id)).state == "LOST") == unwanted
        if unwanted:
            await hosts.remove(session, await hosts.get(session, agent.id))


async def a_standby(database: Database, state: StandbyState) -> RunRow:
    async with database.transaction() as session:
        job = await job_row(session)
        agent = await host_row(session)
        order = run_spec(job, standby=True)
        run = await runs.create(session, job, agent, order)
        standby = await standbys.create(session, job, order, agent.id, "")
        run = await runs.change_spec(session, run, standby=False)
        await standbys.move(session, standby, state)
        return run


@pytest.mark.parametrize("how", ["lost", "ended", "exited", "works"])
async def test_a_standby_that_is_taking_over_does_not_stay_so(database: Database, how: str) -> None:
    run = await a_standby(database, StandbyState.PROMOTING)
    async with database.transaction() as session:
        if how == "lost":
            await runs.lose(session, run)
        elif how == "ended":
            await runs.end(session, run)
        else:
            fields = {"exited": {"state": "EXITED"}, "works": {"state": "RUNNING", "driver_state": "RUNNING"}}[how]
            await runs.report(session, run.host, [RunReport(run=run.id, **fields)])
    async with database.reading() as session:
        standby = await session.get(StandbyRow, run.id)
        assert standby is not None
        assert standby.state == ("PROMOTED" if how == "works" else "FAILED")


async def test_a_row_that_cannot_be_read_does_not_stop_the_others(database: Database) -> None:
    broken = await a_recovery(database, state=JobState.STOPPED)
    savepoint = await a_savepoint(database, "IN_PROGRESS")
    async with database.transaction() as session:
        bad = {"unknown": 1}
        await session.execute(update(RecoveryRow).where(RecoveryRow.id == broken.id).values(body=bad))
        operation = await operations.begin(session, "savepoint", timeout_s=0.01, by="ada")
        await session.execute(update(OperationRow).where(OperationRow.id == operation.id).values(arguments=[1]))
        agent = await host_row(session)
        task = await tasks.create(session, agent.id, "savepoint", {"savepoint": [1]})
    other = await a_recovery(database, state=JobState.STOPPED)
    await tidied(database)
    async with database.reading() as session:
        assert (await recoveries.get(session, other.job, other.id)).ended_at is not None
        assert (await savepoints.get(session, savepoint.id)).state == "FAILED"
        assert (await session.get_one(RecoveryRow, broken.id)).ended_at is None
        assert (await tasks.get(session, task.id)).ended_at is None
        assert operation.id not in {pending.operation.id for pending in await ending.read(session)}
    async with database.transaction() as session:
        assert await ending.expire(session) == 1
