"""Agents, their runs and their tasks."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime

import pytest
from sqlalchemy import update

from clonos.errors import ConcurrentUpdate, NotFound, StateConflict
from clonos.resources.host_capacity import HostCapacity
from clonos.resources.hosts import HostRegister, RunReport
from clonos.resources.jobs import Failure
from clonos_api.store import events, hosts, runs, views
from clonos_api.store.db.clock import clock, now
from clonos_api.store.db.database import Database
from clonos_api.store.tables import HostRow, RunRow
from support.stored import host_row, job_row, run_row, unique

pytestmark = pytest.mark.anyio


async def expire(database: Database, agent: str) -> None:
    async with database.transaction() as session:
        await session.execute(update(HostRow).where(HostRow.id == agent).values(lease_until=clock(-1)))


async def test_the_newest_process_with_a_name_is_the_agent(database: Database) -> None:
    name = unique("host-")
    async with database.transaction() as session:
        first = await hosts.register(session, HostRegister(name=name, instance="a"), lease_s=5)
        assert first.failure_domain == name
        same = await hosts.register(session, HostRegister(name=name, instance="a", slots=7), lease_s=5)
        assert (same.id, same.slots) == (first.id, 7)
        second = await hosts.register(session, HostRegister(name=name, instance="b"), lease_s=5)
        assert second.id == first.id
    async with database.transaction() as session:
        await hosts.heartbeat(session, first.id, "b", hosts.Liveness(5))
        with pytest.raises(ConcurrentUpdate):
            await hosts.heartbeat(session, first.id, "a", hosts.Liveness(5))
        with pytest.raises(ConcurrentUpdate):
            await hosts.check(session, first.id, "a")
        with pytest.raises(NotFound):
            await hosts.heartbeat(session, unique(), "a", hosts.Liveness(5))
        assert (await hosts.get(session, name)).id == first.id
    async with database.reading() as session:
        actual = [
            event.data for event in await events.after(session, 0, types=["host.registered"]) if event.host == first.id
        ]
        replaced = actual[-1].pop("replaced_after_s")
        assert 0 <= replaced < 60
        assert actual == [{"name": name}] * 2, "once for each process, without its secret instance"


async def test_many_register_one_name(database: Database) -> None:
    name = unique("host-")

    async def register(number: int) -> str:
        async with database.transaction() as session:
            return (await hosts.register(session, HostRegister(name=name, instance=str(number)), lease_s=5)).id

    results = await asyncio.gather(*(register(number) for number in range(8)), return_exceptions=True)
    assert len({result for result in results if isinstance(result, str)}) == 1
    assert all(isinstance(result, str | ConcurrentUpdate) for result in results)


async def test_a_heartbeat_without_a_measurement_keeps_the_last_one(database: Database) -> None:
    capacity = HostCapacity(cores=2, busy_cores=0.5, memory_bytes=8, available_bytes=4, driver_bytes=1)
    async with database.transaction() as session:
        agent = await host_row(session)
        assert views.host(agent, 0).capacity is None
        measured = hosts.Liveness(3, capacity=capacity)
        await hosts.heartbeat(session, agent.id, agent.instance, measured)
    assert await hosts.beat(database, agent.id, agent.instance, hosts.Liveness(3))
    async with database.reading() as session:
        row = await session.get_one(HostRow, agent.id)
        assert views.host(row, 0).capacity == capacity
    async with database.transaction() as session:
        again = await hosts.register(session, HostRegister(name=row.name, instance="another"), lease_s=5)
        assert views.host(again, 0).capacity is None, "it may be another machine"


async def test_a_heartbeat_extends_the_lease_by_the_clock_of_the_database(database: Database) -> None:
    async with database.transaction() as session:
        agent = await host_row(session)
        before = await now(session)
        beaten = await hosts.heartbeat(session, agent.id, agent.instance, hosts.Liveness(3))
        after = await now(session)
        assert beaten.row_version == agent.row_version, "a heartbeat does not conflict with other writers"
        left = (beaten.lease_until - before).total_seconds()
        assert 3 <= left <= 3 + (after - before).total_seconds() + 0.002


async def test_a_host_with_an_expired_lease_is_lost_until_its_next_heartbeat(database: Database) -> None:
    async with database.transaction() as session:
        agent, other = await host_row(session), await host_row(session)
        agent = await hosts.drain(session, agent, True)
        assert agent.state == "DRAINING"
    await expire(database, agent.id)
    async with database.transaction() as session:
        lost = [host.id for host in await hosts.lose_expired(session)]
        assert agent.id in lost
        assert other.id not in lost
    async with database.transaction() as session:
        assert agent.id not in [host.id for host in await hosts.lose_expired(session)], "a host is returned once"
        back = await hosts.heartbeat(session, agent.id, agent.instance, hosts.Liveness(5))
        assert (back.state, back.drained) == ("DRAINING", True), "it is still drained"
        with pytest.raises(ConcurrentUpdate):
            await hosts.drain(session, agent, False)
    async with database.reading() as session:
        actual = [event.type for event in await events.after(session, 0) if event.host == agent.id]
    assert actual == ["host.registered", "host.drained", "host.lost", "host.back"]


async def test_heartbeats_race_with_the_end_of_the_lease(database: Database) -> None:
    """Each agent is either lost or has its lease: never both."""
    async with database.transaction() as session:
        created = [await host_row(session) for _ in range(8)]
    for agent in created:
        await expire(database, agent.id)

    async def beat(agent: HostRow) -> None:
        async with database.transaction() as session:
            await hosts.heartbeat(session, agent.id, agent.instance, hosts.Liveness(60))

    async def lose() -> None:
        async with database.transaction() as session:
            await hosts.lose_expired(session)

    await asyncio.gather(*(beat(agent) for agent in created), *(lose() for _ in range(4)))
    async with database.transaction() as session:
        assert {host.id for host in await hosts.lose_expired(session)} & {row.id for row in created} == set()
        for agent in created:
            assert (await hosts.get(session, agent.id)).state == "READY"


async def test_no_work_revision_is_used_twice_after_lost_commits(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover to a server without the newest commits must not give an agent's revision to other work."""
    moments = itertools.count(1_800_000_000_000_000_000, 1_000_000)
    monkeypatch.setattr(hosts.time, "time_ns", lambda: next(moments))

    async def bump() -> int:
        async with database.transaction() as session:
            hosts.bump(session, agent.id)
        async with database.reading() as session:
            return (await runs.work(session, agent.id)).revision

    async with database.transaction() as session:
        agent = await host_row(session)
    before, lost = await bump(), await bump()
    async with database.transaction() as session:
        await session.execute(update(HostRow).where(HostRow.id == agent.id).values(revision=before))
    assert len({before, lost, await bump()}) == 3
    monkeypatch.setattr(hosts.time, "time_ns", lambda: 0)  # a clock that was set back
    assert len({before, lost, await bump(), await bump()}) == 4


async def test_reports(database: Database) -> None:
    async with database.transaction() as session:
        run = await run_row(session)
    started = datetime(2026, 1, 2, tzinfo=UTC)
    report = RunReport(run=run.id, state="RUNNING", driver_state="RUNNING", attempts=1, pid=42, started_at=started)
    async with database.transaction() as session:
        changed = await runs.report(session, run.host, [report, RunReport(run=unique(), state="RUNNING")])
        assert [(item.id, item.state, item.pid, item.started_at) for item in changed] == [
            (run.id, "RUNNING", 42, started)
        ]
    async with database.transaction() as session:
        assert await runs.report(session, run.host, [report]) == [], "no news"
        assert await runs.report(session, unique(), [report]) == [], "not its run"
        # A report without a start time keeps the stored one.
        report = report.model_copy(update={"started_at": None, "attempts": 2, "exit_code": -9})
        (row,) = await runs.report(session, run.host, [report])
        assert (row.started_at, row.attempts, row.exit_code) == (started, 2, -9)
    failure = Failure(error="job-code-failed", what="It broke.")
    final = RunReport(run=run.id, state="EXITED", driver_state="FAILED", exit_code=14, failure=failure, final=True)
    async with database.transaction() as session:
        (row,) = await runs.report(session, run.host, [final])
        assert row.ended_at is not None
        assert row.failure is not None
        assert row.failure.error == "job-code-failed"
    async with database.transaction() as session:
        assert await runs.report(session, run.host, [report]) == [], "it is over"
        assert await runs.open_of_host(session, run.host) == []
    async with database.reading() as session:
        actual = [event.data["state"] for event in await events.after(session, 0, job=run.job, types=["run.state"])]
    assert actual == ["RUNNING", "EXITED"]


async def test_reports_race_with_the_reconciler(database: Database) -> None:
    """A heartbeat succeeds while another writer changes the run specification."""
    async with database.transaction() as session:
        job = await job_row(session)
        run = await run_row(session, job)

    async def report(attempts: int) -> None:
        async with database.transaction() as session:
            await runs.report(session, run.host, [RunReport(run=run.id, state="RUNNING", attempts=attempts)])
            hosts.bump(session, run.host)

    async def order() -> int:
        fenced = 0
        while True:
            async with database.reading() as session:
                seen = await runs.get(session, run.id)
            try:
                async with database.transaction() as session:
                    await runs.change_spec(session, seen, desired="STOPPED")
                return fenced
            except ConcurrentUpdate:
                fenced += 1

    await asyncio.gather(*(report(number) for number in range(1, 12)), *(order() for _ in range(3)))
    async with database.reading() as session:
        actual = await runs.get(session, run.id)
        assert (actual.state, actual.spec.desired) == ("RUNNING", "STOPPED")


async def test_a_lost_run_stays_open_until_its_agent_reports_or_is_removed(database: Database) -> None:
    async with database.transaction() as session:
        agent = await host_row(session)
        run = await run_row(session, host=agent)
        with pytest.raises(StateConflict):
            await hosts.remove(session, agent)
        run = await runs.lose(session, run)
        assert [item.id for item in await runs.open_of_job(session, run.job)] == [run.id]
        gone = await hosts.remove(session, agent)
        assert gone.state == "REMOVED"
        assert await runs.open_of_host(session, agent.id) == []
        with pytest.raises(NotFound):
            await hosts.heartbeat(session, agent.id, agent.instance, hosts.Liveness(5))
        assert agent.id not in [host.id for host in await hosts.every(session)]
        body = HostRegister(name=agent.name, instance="new")
        assert (await hosts.register(session, body, lease_s=5)).state == "READY"


async def test_a_run_needs_its_agent_and_job(database: Database) -> None:
    async with database.transaction() as session:
        job = await job_row(session)
    with pytest.raises(StateConflict):
        async with database.transaction() as session:
            await run_row(session, job, HostRow(id=unique(), name="x"))
    async with database.reading() as session:
        with pytest.raises(NotFound):
            await runs.get(session, unique())
        assert await session.get(RunRow, "x") is None


async def test_a_host_from_before_the_clock_was_set_back_is_lost(database: Database) -> None:
    async with database.transaction() as session:
        dead, alive = await host_row(session, unique("host-")), await host_row(session, unique("host-"), lease_s=4)
        await session.execute(update(HostRow).where(HostRow.id == dead.id).values(lease_until=clock(3600)))
    async with database.transaction() as session:
        await hosts.shorten_leases(session, lease_s=4)
        rows = {row.id: row.lease_until for row in await hosts.every(session)}
        moment = await now(session)
    assert all((rows[host.id] - moment).total_seconds() <= 4 for host in (dead, alive))


@pytest.mark.parametrize(("announced_s", "lease_s"), [(0.3, 4), (1, 4), (2, 8), (3, 12), (60, 12)])
def test_a_host_with_late_heartbeats_has_a_longer_lease(announced_s: float, lease_s: float) -> None:
    assert hosts.extended_lease_s(4, planned_s=1, announced_s=announced_s) == lease_s
