"""Nothing waits for ever: whatever was forgotten is ended by the leader."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from clonos.resources.hosts import RunOrder, RunReport
from clonos.resources.jobs import JobState
from clonos.standby.states import StandbyState
from clonos_api.reconcile import ending
from clonos_api.reconcile.tidying import tidy
from clonos_api.store import agents, epochs, events, jobs, operations, recoveries, runs, savepoints, standbys, tasks
from clonos_api.store.clock import now
from clonos_api.store.database import Database
from clonos_api.store.tables import AgentRow, JobRow, RecoveryRow, RunRow, SavepointRow, StandbyRow
from stored import EventFile, a_job, a_run, an_agent, an_order

pytestmark = pytest.mark.anyio


async def a_savepoint(database: Database, state: str, *, job_state: str = "RUNNING") -> SavepointRow:
    async with database.transaction() as session:
        job = await a_job(session)
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
        agent = await an_agent(session)
        task = await tasks.create(session, agent.id, "savepoint", {"savepoint": row.id, "location": "/x"})
    assert await tidied(database) == 2
    row = await again(database, row)
    assert row.state == "FAILED"
    assert (row.failure or {})["error"] == "savepoint-given-up"
    async with database.reading() as session:
        assert (await tasks.get(session, task.id)).ended_at is not None
    assert await tidied(database) == 0
    async with database.transaction() as session:  # and it can be deleted still
        assert (await savepoints.begin_delete(session, await savepoints.get(session, row.id))).failure is None


@pytest.mark.parametrize("state", ["IN_PROGRESS", "DELETING"])
async def test_a_savepoint_that_an_operation_or_a_stop_waits_for_is_left(database: Database, state: str) -> None:
    row, of_stop = await a_savepoint(database, state), await a_savepoint(database, state, job_state="STOPPING")
    async with database.transaction() as session:
        kind = "savepoint" if state == "IN_PROGRESS" else "delete-savepoint"
        made = await operations.begin(
            session, kind, job=row.job, arguments={"savepoint": row.id}, timeout_s=60, by="ada"
        )
        agent = await an_agent(session)
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
        agent = await an_agent(session)  # it is gone: it does not answer
        task = await tasks.create(session, agent.id, kind, {"savepoint": row.id}, operation=made.id)
    async with database.transaction() as session:
        assert await ending.expire(session) == 1
    async with database.reading() as session:
        assert (await operations.get(session, made.id)).state == "FAILED"
        assert (await tasks.get(session, task.id)).ended_at is not None
    row = await again(database, row)
    assert (row.state, (row.failure or {})["error"]) == ("FAILED", "operation-timed-out")


async def a_recovery(database: Database, *, state: str = "RUNNING", since_s: float = 0.0, **begun: Any) -> RecoveryRow:
    """Of a job whose generation 2 runs; its first two epochs were told."""
    async with database.transaction() as session:
        job = await a_job(session)
        run = await a_run(session, job)
        file = EventFile()
        file.start(1)
        file.epoch(0)
        file.start(2)
        file.epoch(1)
        await epochs.ingest(session, run.id, 0, file.lines)
        at = datetime.fromtimestamp(file.at, (await now(session)).tzinfo) + timedelta(seconds=begun.pop("after_s", 1))
        since = await now(session) - timedelta(seconds=since_s)
        await session.execute(update(JobRow).where(JobRow.id == job.id).values(state=state, state_since=since))
        return await recoveries.begin(
            session, job.id, from_agent="a", at=at, **{"cause": "crash", "failed_generation": 2, **begun}
        )


@pytest.mark.parametrize(
    ("how", "outcome"),
    [
        ({}, None),  # it may still come
        ({"state": "RECOVERING", "since_s": 10_000}, None),  # that state has a deadline of its own
        ({"since_s": 1_000}, "idle"),
        ({"state": JobState.STOPPED}, "abandoned"),
        # The agent's word came after the driver's: generation 2 has worked since.
        ({"failed_generation": 1, "after_s": -0.01}, "overtaken"),
        ({"failed_generation": 2, "after_s": -0.01}, "overtaken"),
        ({"failed_generation": 2, "after_s": -0.01, "state": "RECOVERING"}, None),  # an epoch of the one that failed
    ],
)
async def test_each_recovery_ends(database: Database, how: dict[str, Any], outcome: str | None) -> None:
    row = await a_recovery(database, **how)
    assert await tidied(database) == (outcome is not None)
    async with database.reading() as session:
        found = await recoveries.get(session, row.job, row.id)
        assert (found.ended_at is not None) == (outcome is not None)
        assert found.body.get("outcome") == outcome
        told = await events.after(session, 0, types=["job.recovery.ended"], job=row.job)
        assert [one.data["outcome"] for one in told[1:]] == ([outcome] if outcome else [])
    async with database.reading() as session:
        assert (await jobs.get(session, row.job)).generation == 2


@pytest.mark.parametrize("under_way", [True, False])
async def test_the_record_of_a_move_waits_for_the_standby(database: Database, under_way: bool) -> None:
    row = await a_recovery(database, cause="move", after_s=-0.01)
    if under_way:
        async with database.transaction() as session:
            await session.execute(update(JobRow).where(JobRow.id == row.job).values(moving={"cause": "move"}))
    assert await tidied(database) == (not under_way)


@pytest.mark.parametrize("goal", ["GONE", "RUN"])
@pytest.mark.parametrize("lost", [True, False])
async def test_what_a_lost_host_was_to_end_counts_as_lost(database: Database, goal: str, lost: bool) -> None:
    async with database.transaction() as session:
        agent = await an_agent(session)
        run = await a_run(session, agent=agent)
        order = RunOrder.model_validate(run.order)
        await runs.order(session, run, order.model_copy(update={"goal": goal}))
        if lost:
            await session.execute(update(AgentRow).where(AgentRow.id == agent.id).values(state="LOST"))
    unwanted = lost and goal == "GONE"
    assert await tidied(database) == unwanted
    async with database.transaction() as session:
        assert ((await runs.get(session, run.id)).state == "LOST") == unwanted
        if unwanted:
            await agents.remove(session, await agents.get(session, agent.id))


async def a_standby(database: Database, state: StandbyState) -> RunRow:
    async with database.transaction() as session:
        job = await a_job(session)
        agent = await an_agent(session)
        order = an_order(job, standby=True)
        run = await runs.create(session, job, agent, order)
        standby = await standbys.create(session, job, order, agent.id, "")
        run = await runs.order(session, run, order.model_copy(update={"standby": False}))
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
            told = {"exited": {"state": "EXITED"}, "works": {"state": "RUNNING", "driver_state": "RUNNING"}}[how]
            await runs.report(session, run.agent, [RunReport(run=run.id, **told)])
    async with database.reading() as session:
        found = await session.get(StandbyRow, run.id)
        assert found is not None
        assert found.state == ("PROMOTED" if how == "works" else "FAILED")
