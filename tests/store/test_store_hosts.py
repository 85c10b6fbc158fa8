"""Agents, their runs and their tasks."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from sqlalchemy import update

from clonos.errors import Fenced, NotFound, StateConflict
from clonos.resources.hosts import AgentRegister, RunReport
from clonos.resources.jobs import Failure
from clonos_api.store import agents, events, runs, tasks
from clonos_api.store.clock import clock, now
from clonos_api.store.database import Database
from clonos_api.store.tables import AgentRow, RunRow
from stored import a_job, a_run, an_agent, an_order, unique

pytestmark = pytest.mark.anyio


async def expire(database: Database, agent: str) -> None:
    async with database.transaction() as session:
        await session.execute(update(AgentRow).where(AgentRow.id == agent).values(lease_until=clock(-1)))


async def test_the_newest_process_with_a_name_is_the_agent(database: Database) -> None:
    name = unique("host-")
    async with database.transaction() as session:
        first = await agents.register(session, AgentRegister(name=name, instance="a"), lease_s=5)
        assert first.failure_domain == name
        same = await agents.register(session, AgentRegister(name=name, instance="a", slots=7), lease_s=5)
        assert (same.id, same.slots) == (first.id, 7)
        second = await agents.register(session, AgentRegister(name=name, instance="b"), lease_s=5)
        assert second.id == first.id
    async with database.transaction() as session:
        await agents.heartbeat(session, first.id, "b", agents.Lives(5))
        with pytest.raises(Fenced):
            await agents.heartbeat(session, first.id, "a", agents.Lives(5))
        with pytest.raises(Fenced):
            await agents.check(session, first.id, "a")
        with pytest.raises(NotFound):
            await agents.heartbeat(session, unique(), "a", agents.Lives(5))
        assert (await agents.get(session, name)).id == first.id
    async with database.reading() as session:
        told = [
            one.data["instance"]
            for one in await events.after(session, 0, types=["agent.registered"])
            if one.agent == first.id
        ]
        assert told == ["a", "b"]


async def test_many_register_one_name(database: Database) -> None:
    name = unique("host-")

    async def register(number: int) -> str:
        async with database.transaction() as session:
            return (await agents.register(session, AgentRegister(name=name, instance=str(number)), lease_s=5)).id

    results = await asyncio.gather(*(register(number) for number in range(8)), return_exceptions=True)
    assert len({one for one in results if isinstance(one, str)}) == 1
    assert all(isinstance(one, str | Fenced) for one in results)


async def test_a_heartbeat_extends_the_lease_by_the_clock_of_the_database(database: Database) -> None:
    async with database.transaction() as session:
        agent = await an_agent(session)
        before = await now(session)
        beaten = await agents.heartbeat(session, agent.id, agent.instance, agents.Lives(3))
        after = await now(session)
        assert beaten.token == agent.token, "others may write meanwhile"
        left = (beaten.lease_until - before).total_seconds()
        assert 3 <= left <= 3 + (after - before).total_seconds() + 0.002


async def test_an_agent_whose_lease_is_over_is_lost_until_it_is_heard_of(database: Database) -> None:
    async with database.transaction() as session:
        agent, other = await an_agent(session), await an_agent(session)
        agent = await agents.drain(session, agent, True)
        assert agent.state == "DRAINING"
    await expire(database, agent.id)
    async with database.transaction() as session:
        lost = [one.id for one in await agents.lose_expired(session)]
        assert agent.id in lost
        assert other.id not in lost
    async with database.transaction() as session:
        assert agent.id not in [one.id for one in await agents.lose_expired(session)], "told once"
        back = await agents.heartbeat(session, agent.id, agent.instance, agents.Lives(5))
        assert (back.state, back.drained) == ("DRAINING", True), "nobody undrained it"
        with pytest.raises(Fenced):
            await agents.drain(session, agent, False)
    async with database.reading() as session:
        told = [one.type for one in await events.after(session, 0) if one.agent == agent.id]
    assert told == ["agent.registered", "agent.drained", "agent.lost", "agent.back"]


async def test_heartbeats_race_with_the_end_of_the_lease(database: Database) -> None:
    """Each agent is either lost or has its lease: never both."""
    async with database.transaction() as session:
        made = [await an_agent(session) for _ in range(8)]
    for agent in made:
        await expire(database, agent.id)

    async def beat(agent: AgentRow) -> None:
        async with database.transaction() as session:
            await agents.heartbeat(session, agent.id, agent.instance, agents.Lives(60))

    async def lose() -> None:
        async with database.transaction() as session:
            await agents.lose_expired(session)

    await asyncio.gather(*(beat(agent) for agent in made), *(lose() for _ in range(4)))
    async with database.transaction() as session:
        assert {one.id for one in await agents.lose_expired(session)} & {one.id for one in made} == set()
        for agent in made:
            assert (await agents.get(session, agent.id)).state == "READY"


async def test_orders_are_the_work_of_an_agent(database: Database) -> None:
    async with database.transaction() as session:
        job, agent = await a_job(session), await an_agent(session)
        before = (await runs.work(session, agent.id)).revision
        run = await a_run(session, job, agent)
    async with database.transaction() as session:
        work = await runs.work(session, agent.id)
        assert [one.run for one in work.runs] == [run.id]
        assert work.revision > before
        task = await tasks.create(session, agent.id, "savepoint", {"to": "x"}, operation=unique())
    assert database.notifier.seq > 0
    assert await database.notifier.wait_work(agent.id, before, 0) == work.revision + 1
    async with database.transaction() as session:
        run = await runs.order(session, run, an_order(job, "STOP", run.id))
        work = await runs.work(session, agent.id)
        assert [one.goal for one in work.runs] == ["STOP"]
        assert [(one.task, one.arguments) for one in work.tasks] == [(task.id, {"to": "x"})]
        assert await tasks.end(session, task)
        assert not await tasks.end(session, task), "only the first counts"
        await runs.end(session, run)
        assert (await runs.work(session, agent.id)).runs == []
        assert (await runs.of_job(session, job.id)).rows[0].id == run.id
        assert await agents.loads(session) == {
            key: value for key, value in (await agents.loads(session)).items() if key != agent.id
        }


async def test_reports(database: Database) -> None:
    async with database.transaction() as session:
        run = await a_run(session)
    started = datetime(2026, 1, 2, tzinfo=UTC)
    report = RunReport(run=run.id, state="RUNNING", driver_state="RUNNING", attempts=1, pid=42, started_at=started)
    async with database.transaction() as session:
        changed = await runs.report(session, run.agent, [report, RunReport(run=unique(), state="RUNNING")])
        assert [(one.id, one.state, one.pid, one.started_at) for one in changed] == [(run.id, "RUNNING", 42, started)]
    async with database.transaction() as session:
        assert await runs.report(session, run.agent, [report]) == [], "no news"
        assert await runs.report(session, unique(), [report]) == [], "not its run"
        # A report that says nothing of the start does not take it back.
        report = report.model_copy(update={"started_at": None, "attempts": 2, "exit_code": -9})
        (one,) = await runs.report(session, run.agent, [report])
        assert (one.started_at, one.attempts, one.exit_code) == (started, 2, -9)
    failure = Failure(error="job-code-failed", what="It broke.")
    final = RunReport(run=run.id, state="EXITED", driver_state="FAILED", exit_code=14, failure=failure, final=True)
    async with database.transaction() as session:
        (one,) = await runs.report(session, run.agent, [final])
        assert one.ended_at is not None
        assert one.failure is not None
        assert one.failure["error"] == "job-code-failed"
    async with database.transaction() as session:
        assert await runs.report(session, run.agent, [report]) == [], "it is over"
        assert await runs.open_of_agent(session, run.agent) == []
    async with database.reading() as session:
        told = [one.data["state"] for one in await events.after(session, 0, job=run.job, types=["run.state"])]
    assert told == ["RUNNING", "EXITED"]


async def test_reports_race_with_the_reconciler(database: Database) -> None:
    """A heartbeat never fails because somebody gave the run another order at that moment."""
    async with database.transaction() as session:
        job = await a_job(session)
        run = await a_run(session, job)

    async def report(attempts: int) -> None:
        async with database.transaction() as session:
            await runs.report(session, run.agent, [RunReport(run=run.id, state="RUNNING", attempts=attempts)])
            agents.bump(session, run.agent)

    async def order() -> int:
        fenced = 0
        while True:
            async with database.reading() as session:
                seen = await runs.get(session, run.id)
            try:
                async with database.transaction() as session:
                    await runs.order(session, seen, an_order(job, "STOP", run.id))
                return fenced
            except Fenced:
                fenced += 1

    await asyncio.gather(*(report(number) for number in range(1, 12)), *(order() for _ in range(3)))
    async with database.reading() as session:
        found = await runs.get(session, run.id)
        assert (found.state, found.order["goal"]) == ("RUNNING", "STOP")


async def test_a_lost_run_stays_until_its_agent_answers_or_is_removed(database: Database) -> None:
    async with database.transaction() as session:
        agent = await an_agent(session)
        run = await a_run(session, agent=agent)
        with pytest.raises(StateConflict):
            await agents.remove(session, agent)
        run = await runs.lose(session, run)
        assert [one.id for one in await runs.open_of_job(session, run.job)] == [run.id]
        gone = await agents.remove(session, agent)
        assert gone.state == "REMOVED"
        assert await runs.open_of_agent(session, agent.id) == []
        with pytest.raises(NotFound):
            await agents.heartbeat(session, agent.id, agent.instance, agents.Lives(5))
        assert agent.id not in [one.id for one in await agents.every(session)]
        body = AgentRegister(name=agent.name, instance="new")
        assert (await agents.register(session, body, lease_s=5)).state == "READY"


async def test_a_run_needs_its_agent_and_job(database: Database) -> None:
    async with database.transaction() as session:
        job = await a_job(session)
    with pytest.raises(StateConflict):
        async with database.transaction() as session:
            await a_run(session, job, AgentRow(id=unique(), name="x"))
    async with database.reading() as session:
        with pytest.raises(NotFound):
            await runs.get(session, unique())
        assert await session.get(RunRow, "x") is None
