"""Planned moves over the real store: after any failure of the leader, the next leader continues the move."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.jobs import Failure
from clonos_api.reconcile import ending
from clonos_api.reconcile.checkpoints import CheckpointLocations
from clonos_api.routes.access import changing
from clonos_api.store import hosts, jobs, operations, planned_moves, recoveries
from clonos_api.store.columns import Moving
from clonos_api.store.db.clock import now
from clonos_api.store.db.database import Database
from clonos_api.store.tables import JobRow
from component.reconcile.acting import Placing, Users, eventually, reconciling, running_hosts
from support.agents import FakeAgent

pytestmark = pytest.mark.anyio

SUPERSEDED = Failure(error="superseded", what="A newer generation owns the job.", domain="run")


async def ask(database: Database, job: JobRow, on: dict[str, FakeAgent], *, timeout_s: float = 120.0) -> str:
    """Move it to any other host."""

    async def change(session: AsyncSession) -> str:
        row = await jobs.get(session, job.id)
        made = await operations.begin(session, "move", job=row.id, timeout_s=300.0, by="ada")
        versions = {"previous": row.version, "version": row.version}
        until = await now(session) + timedelta(seconds=timeout_s)
        moving = Moving(cause="move", operation=made.id, leaves=holder(on, row.run).id, until=until, **versions)
        await planned_moves.begin(session, row, moving)
        return made.id

    return await changing(database, None, change)


def holder(on: dict[str, FakeAgent], run: str | None) -> FakeAgent:
    return next(actor for actor in on.values() if run in actor.drivers)


async def under_way(users: Users) -> Moving:
    moving = (await users.job()).moving
    assert moving is not None
    return moving


async def test_another_leader_continues_a_move_at_each_step(
    database: Database, placing: Placing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clonos_api.reconcile.states.moving.HAND_OVER_S", 300.0)
    users = Users(database)
    async with running_hosts(database, "a", "b") as on:
        async with reconciling(database, placing):
            await users.submit()
            job = await users.until("RUNNING")
        operation = await ask(database, job, on)
        old = holder(on, job.run)
        new = next(actor for actor in on.values() if actor is not old)
        new.starts = False
        async with reconciling(database, placing):

            async def handed_over() -> bool:
                return (await under_way(users)).handed_at is not None

            await eventually(handed_over, "a standby is READY and promoted")
        row = await users.job()
        assert (row.state, row.run) == ("RUNNING", job.run), "the driver works until the standby has claimed"
        new.starts = True
        standby = (await under_way(users)).standby

        async def claimed() -> bool:
            return new.drivers[standby].report.get("generation") == 2

        await eventually(claimed, "it claims, without a leader")
        old.drivers[job.run or ""].fail(70, SUPERSEDED)
        async with reconciling(database, placing):
            done = await users.ended(operation)
            assert (done.state, done.result["run"]) == ("COMPLETED", standby)
            row = await users.until("RUNNING")
            assert (row.run, row.moving) == (standby, None)
        async with database.reading() as session:
            (recovery,) = (await recoveries.page(session, job.id)).rows
        assert (recovery.body.cause, recovery.body.to_host) == ("move", new.name)
        happened = [event.data["cause"] for event in await users.happened("job.move.began", "job.move.ended")]
        assert happened == ["move", "move"]


async def test_a_second_move_replaces_the_first(database: Database, placing: Placing) -> None:
    users = Users(database)
    async with reconciling(database, placing), running_hosts(database, "a") as on:
        await users.submit()
        job = await users.until("RUNNING")
        first = await ask(database, job, on)
        second = await ask(database, job, on, timeout_s=0.5)
        ended = await users.ended(first)
        assert (ended.state, ended.failure.error) == ("FAILED", "overtaken")
        failed = await users.ended(second)
        assert (failed.state, failed.failure.error) == ("FAILED", "move-failed")
        assert "No host was free" in failed.failure.what
        assert (await users.job()).run == job.run


async def test_a_stop_ends_a_move_and_leaves_nothing(database: Database, placing: Placing) -> None:
    users = Users(database)
    async with reconciling(database, placing), running_hosts(database, "a", "b") as on:
        await users.submit()
        job = await users.until("RUNNING")
        next(actor for actor in on.values() if job.run not in actor.drivers).starts = False
        operation = await ask(database, job, on)

        async def handed_over() -> bool:
            return (await under_way(users)).handed_at is not None

        await eventually(handed_over, "a standby is promoted")
        assert (await users.ended(await users.ask("stop"))).state == "COMPLETED"
        assert (await users.ended(operation)).state == "FAILED"

        async def nothing() -> bool:
            return all(run.ended_at is not None for run in await users.runs())

        await eventually(nothing, "neither the driver nor the standby is left")
        assert (await users.job()).moving is None


async def test_a_host_that_is_drained_is_left_cold_where_standbys_never_get_ready(
    database: Database, placing: Placing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clonos_api.reconcile.states.active.PREPARE_S", 0.5)
    monkeypatch.setattr(FakeAgent, "warms", False)
    users = Users(database)
    async with reconciling(database, placing), running_hosts(database, "a", "b") as on:
        await users.submit()
        job = await users.until("RUNNING")
        old = holder(on, job.run)
        async with database.transaction() as session:
            await hosts.drain(session, await hosts.get(session, old.id), True)

        async def elsewhere() -> bool:
            row = await users.job()
            return row.state == "RUNNING" and row.run != job.run and old is not holder(on, row.run)

        await eventually(elsewhere, "it runs on the other host")
        states = [event.data["to"] for event in await users.happened("job.state")]
        assert "STOPPING" in states
        causes = [event.data["cause"] for event in await users.happened("job.move.began", "job.move.ended")]
        assert causes == ["drain", "drain"]


@pytest.mark.parametrize("kind", ["move", "restart"])
async def test_an_operation_that_is_newer_than_what_was_read_of_its_job_is_not_ended_by_that(
    database: Database, placing: Placing, kind: str
) -> None:
    users, place = Users(database), CheckpointLocations.of(placing)
    async with running_hosts(database, "a") as on:
        async with reconciling(database, placing):
            await users.submit()
            job = await users.until("RUNNING")
        async with database.reading() as session:
            stale = await jobs.get(session, job.id)
        operation = await ask(database, job, on) if kind == "move" else await users.ask(kind)
        async with database.reading() as session:
            (pending,) = [entry for entry in await ending.read(session) if entry.operation.id == operation]
        pending.job = stale
        assert ending.is_due(pending, [], place)
        async with database.transaction() as session:
            await ending.end(session, pending, [], place)
        assert (await users.operation(operation)).state == "IN_PROGRESS"
