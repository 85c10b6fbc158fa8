"""History is bounded, and what is needed stays."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from clonos.errors import Fenced, NotFound
from clonos.resources.hosts import RunOrder, RunReport
from clonos.resources.service import Role, TokenCreate
from clonos.standby.states import StandbyState
from clonos_api.store import (
    agents,
    artifacts,
    audit,
    counters,
    epochs,
    events,
    exceptions,
    generations,
    jobs,
    logs,
    operations,
    progress,
    recoveries,
    retention,
    runs,
    savepoints,
    standbys,
    tasks,
    tokens,
)
from clonos_api.store.clock import clock, now
from clonos_api.store.database import Actor, Database
from clonos_api.store.retention import Limits
from clonos_api.store.tables import (
    AgentRow,
    ArtifactRow,
    Base,
    JobRow,
    LogChunkRow,
    OperationRow,
    StandbyRow,
    TaskRow,
    TokenRow,
)
from stored import EventFile, a_job, a_run, an_agent, an_artifact, spec, unique

pytestmark = pytest.mark.anyio


async def count(database: Database, table: type[Base], *which: Any) -> int:
    async with database.reading() as session:
        return int((await session.execute(select(func.count()).select_from(table).where(*which))).scalar_one())


async def test_history_of_a_job_is_bounded_and_its_sums_stay(database: Database) -> None:
    async with database.transaction() as session:
        job = await a_job(session)
        other = await a_run(session)
        run = await a_run(session, job)
        for _ in range(5):
            done = await a_run(session, job)
            await runs.report(session, done.agent, [RunReport(run=done.id, state="EXITED", final=True)])
        for version in range(1, 7):
            job = await jobs.patch(session, job, version=version, spec=spec(job.name, v=str(version)), by="ada")
    file = EventFile()
    for generation in range(1, 8):
        if generation == 1:
            file.start(1)
        else:
            file.restart(generation)
        for number in range(5):
            file.epoch(generation * 5 + number)
    async with database.transaction() as session:
        for one in (run, other):
            await epochs.ingest(session, one.id, 0, file.lines)
            await logs.push(session, one.id, 0, "".join(f"{number:>9}\n" for number in range(100)))
            await logs.push(session, one.id, 1000, "".join(f"{number:>9}\n" for number in range(100, 110)))
    limits = Limits(epochs=10, generations=3, recoveries=2, exceptions=4, ended_runs=2, versions=3, log_bytes=500)
    dropped = await retention.prune(database, limits)
    assert dropped["epochs"] == 2 * 25
    async with database.reading() as session:
        assert [one.epoch for one in (await progress.page(session, job.id)).rows] == list(range(39, 29, -1))
        assert [one.generation for one in (await generations.page(session, job.id)).rows] == [7, 6, 5]
        assert len((await recoveries.page(session, job.id)).rows) == 2
        assert len((await exceptions.page(session, job.id)).rows) == 4
        assert [one.version for one in (await jobs.versions(session, job.id)).rows] == [7, 6, 5]
        kept = (await runs.of_job(session, job.id)).rows
        assert len(kept) == 3
        assert run.id in [one.id for one in kept], "it has not ended"
        assert (await counters.of_job(session, job.id))["epochs"] == 35
        assert (await logs.tail(session, job.id, 1000)).lines == [f"{number:>9}" for number in range(100, 110)]
    assert await retention.prune(database, limits) == {}


async def test_standbys_that_are_over_are_bounded(database: Database) -> None:
    async with database.transaction() as session:
        job, agent = await a_job(session), await an_agent(session)
        made = []
        for state in ("PROMOTED", "FAILED", "FAILED", "PROMOTED", "READY", "PROMOTING"):
            run = await a_run(session, job)
            order = RunOrder.model_validate(run.order)
            standby = await standbys.create(session, job, order, agent.id, "")
            await standbys.move(session, standby, StandbyState(state))
            made.append(standby.id)
    for number, one in enumerate(made):
        async with database.transaction() as session:
            await session.execute(update(StandbyRow).where(StandbyRow.id == one).values(since=clock(number - 60)))
    assert (await retention.prune(database, Limits(ended_standbys=1)))["standbys"] == 3
    async with database.reading() as session:
        assert [one.id for one in (await standbys.page(session, job=job.id)).rows] == made[:2:-1]


async def test_events_and_audit_are_bounded(database: Database) -> None:
    for _ in range(30):
        async with database.transaction(by=Actor("ada")) as session:
            events.append(session, "x")
            await a_job(session)
    await retention.prune(database, Limits(events=10, audit=7))
    async with database.reading() as session:
        oldest, newest = await events.bounds(session)
        assert newest - oldest < 10
        assert len((await audit.page(session)).rows) <= 7
    await retention.prune(database, Limits(events=0, audit=0))
    async with database.transaction() as session:
        events.append(session, "x")
    async with database.reading() as session:
        assert (await events.bounds(session))[1] > newest, "a number is never given again"


async def test_what_is_over_goes_after_a_while(database: Database) -> None:
    async with database.transaction() as session:
        agent, gone = await an_agent(session), await an_agent(session)
        await agents.remove(session, gone)
        old = await operations.complete(session, await operations.begin(session, "stop", timeout_s=5, by="a"))
        open_one = await operations.begin(session, "stop", timeout_s=5, by="a")
        ended = await tasks.create(session, agent.id, "savepoint", {})
        await tasks.end(session, ended)
        waiting = await tasks.create(session, agent.id, "savepoint", {})
        token, _ = await tokens.create(session, TokenCreate(name="a", role=Role.VIEWER))
        valid, _ = await tokens.create(session, TokenCreate(name="b", role=Role.VIEWER))
        await tokens.revoke(session, token.id)
        sha = await an_artifact(session, unique().encode())
        used = await an_artifact(session)
        await a_job(session)
    assert "operations" not in await retention.prune(database)
    later = await _prune_all(database)
    assert later["operations"] >= 1
    async with database.reading() as session:
        left = {
            OperationRow: (open_one.id, old.id),
            TaskRow: (waiting.id, ended.id),
            TokenRow: (valid.id, token.id),
            ArtifactRow: (used, sha),
            AgentRow: (agent.id, gone.id),
        }
        for table, (stays, goes) in left.items():
            assert await session.get(table, stays) is not None, table
            assert await session.get(table, goes) is None, table


async def _prune_all(database: Database) -> dict[str, int]:
    """As if everything had been over for long."""
    async with database.transaction() as session:
        await session.execute(
            update(OperationRow).where(OperationRow.ended_at.is_not(None)).values(ended_at=clock(-60))
        )
        await session.execute(update(TaskRow).where(TaskRow.ended_at.is_not(None)).values(ended_at=clock(-60)))
        await session.execute(update(TokenRow).where(TokenRow.revoked_at.is_not(None)).values(revoked_at=clock(-60)))
        await session.execute(update(ArtifactRow).values(created_at=clock(-60)))
        await session.execute(update(AgentRow).values(heartbeat_at=clock(-60)))
        await session.execute(update(JobRow).where(JobRow.deleted_at.is_not(None)).values(deleted_at=clock(-60)))
    limits = Limits(
        ended_operations_s=30,
        ended_tokens_s=30,
        unused_artifacts_s=30,
        removed_agents_s=30,
        deleted_jobs_s=30,
    )
    return await retention.prune(database, limits)


async def test_a_deleted_job_goes_with_all_that_is_its_own_unless_it_has_savepoints(database: Database) -> None:
    file = EventFile()
    file.start(1)
    file.epoch(1)
    made = []
    for number in range(2):
        async with database.transaction() as session:
            job = await a_job(session)
            run = await a_run(session, job)
            await epochs.ingest(session, run.id, 0, file.lines)
            await logs.push(session, run.id, 0, "x\n")
            if number:
                saved = await savepoints.create(session, job, name="s", location="x")
            made.append(await jobs.delete(session, job))
    await _prune_all(database)
    async with database.reading() as session:
        with pytest.raises(NotFound):
            await jobs.get(session, made[0].id, deleted=True)
        assert (await jobs.get(session, made[1].id, deleted=True)).id == made[1].id
        assert (await savepoints.get(session, saved.id)).job == made[1].id
        assert await artifacts.get(session, made[1].artifact)
    assert await count(database, LogChunkRow, LogChunkRow.job == made[0].id) == 0
    assert await count(database, LogChunkRow, LogChunkRow.job == made[1].id) == 1


async def test_a_stale_leader_drops_nothing(database: Database) -> None:
    async def check(_session: Any) -> None:
        raise Fenced("Another replica leads.")

    async with database.transaction() as session:
        events.append(session, "x")
        moment = await now(session)
    with pytest.raises(Fenced):
        await retention.prune(database, Limits(events=0), check=check)
    async with database.reading() as session:
        assert (await events.bounds(session))[1] > 0
        assert await now(session) > moment - timedelta(seconds=1)
