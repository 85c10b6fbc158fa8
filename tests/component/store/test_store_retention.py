"""History is bounded, and rows in use stay."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, func, select, update

from clonos.errors import ConcurrentUpdate, NotFound
from clonos.resources.hosts import NextRun, RunReport
from clonos.resources.service import Role, TokenCreate
from clonos.standby.states import StandbyState
from clonos_api.store import (
    artifacts,
    audit,
    counters,
    events,
    generations,
    hosts,
    job_exceptions,
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
from clonos_api.store.columns import Moving
from clonos_api.store.db.clock import clock, now
from clonos_api.store.db.database import Actor, Database
from clonos_api.store.db.paging import Window
from clonos_api.store.retention import Limits
from clonos_api.store.tables import (
    ArtifactPartRow,
    ArtifactRow,
    AuditRow,
    Base,
    EventRow,
    HostRow,
    JobRow,
    LogChunkRow,
    OperationRow,
    StandbyRow,
    TaskRow,
    TokenRow,
)
from support.stored import EventFile, host_row, ingest, job_row, push_log, run_row, spec, store_artifact, unique

pytestmark = pytest.mark.anyio


async def count(database: Database, table: type[Base], *which: Any) -> int:
    async with database.reading() as session:
        return int((await session.execute(select(func.count()).select_from(table).where(*which))).scalar_one())


async def test_history_of_a_job_is_bounded_and_its_sums_stay(database: Database) -> None:
    async with database.transaction() as session:
        job = await job_row(session)
        other = await run_row(session)
        run = await run_row(session, job)
        for _ in range(5):
            done = await run_row(session, job)
            await runs.report(session, done.host, [RunReport(run=done.id, state="EXITED", final=True)])
        for version in range(1, 7):  # 1 runs, and 7 is what the next start runs
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
        for each in (run, other):
            await ingest(session, each.id, 0, file.lines)
            await push_log(session, each.id, 0, "".join(f"{number:>9}\n" for number in range(100)))
            await push_log(session, each.id, 1000, "".join(f"{number:>9}\n" for number in range(100, 110)))
    limits = Limits(epochs=10, generations=3, recoveries=2, exceptions=4, ended_runs=2, versions=3, log_bytes=500)
    dropped = await retention.prune(database, limits)
    assert dropped["epochs"] == 2 * 25
    async with database.reading() as session:
        assert [row.epoch for row in (await progress.page(session, job.id)).rows] == list(range(39, 29, -1))
        assert [row.generation for row in (await generations.page(session, job.id)).rows] == [7, 6, 5]
        assert len((await recoveries.page(session, job.id)).rows) == 2
        assert len((await job_exceptions.page(session, job.id)).rows) == 4
        assert [row.version for row in (await jobs.versions(session, job.id)).rows] == [7, 6, 5, 4, 1]
        remaining = (await runs.of_job(session, job.id)).rows
        assert len(remaining) == 3
        assert run.id in [item.id for item in remaining], "it has not ended"
        assert (await counters.of_job(session, job.id))["epochs"] == 35
        assert (await logs.tail(session, job.id, 1000)).lines == [f"{number:>9}" for number in range(100, 110)]
    assert await retention.prune(database, limits) == {}


async def test_versions_that_a_move_or_an_open_run_may_start_stay(database: Database) -> None:
    """The version to go back to, those of open runs, and those that follow a run whose successor is not placed yet."""
    async with database.transaction() as session:
        job = await job_row(session)
        for version in range(1, 13):
            job = await jobs.patch(session, job, version=version, spec=spec(job.name, v=str(version)), by="ada")
        moving = Moving(cause="upgrade", leaves="a", version=9, previous=2, until=await now(session))
        specs = [{"version": 3, "finish_for": 4}, {"version": 5, "next": NextRun(version=6, finish_for=7)}]
        for changes in specs:
            run = await run_row(session, job)
            run = await runs.change_spec(session, run, **changes)
        await runs.end(session, run)
        job = await jobs.change(session, job, moving=moving, run=run.id)
    await retention.prune(database, Limits(versions=1))
    async with database.reading() as session:
        assert [row.version for row in (await jobs.versions(session, job.id)).rows] == [13, 12, 9, 7, 6, 5, 4, 3, 2]


async def test_ended_standbys_are_bounded(database: Database) -> None:
    async with database.transaction() as session:
        job, agent = await job_row(session), await host_row(session)
        created = []
        for state in ("PROMOTED", "FAILED", "FAILED", "PROMOTED", "READY", "PROMOTING"):
            run = await run_row(session, job)
            standby = await standbys.create(session, job, run.spec, agent.id, "")
            await standbys.move(session, standby, StandbyState(state))
            created.append(standby.id)
    for number, standby_id in enumerate(created):
        async with database.transaction() as session:
            await session.execute(
                update(StandbyRow).where(StandbyRow.id == standby_id).values(since=clock(number - 60))
            )
    assert (await retention.prune(database, Limits(ended_standbys=1)))["standbys"] == 3
    async with database.reading() as session:
        assert [row.id for row in (await standbys.page(session, job=job.id)).rows] == created[:2:-1]


async def _audit(database: Database) -> list[AuditRow]:
    async with database.reading() as session:
        return list((await audit.page(session, Window(1000))).rows)


async def test_a_gap_in_the_numbers_removes_no_event(database: Database) -> None:
    async with database.transaction() as session:
        for _ in range(3):
            events.append(session, "x")
    async with database.transaction() as session:
        first, newest = await events.bounds(session)
        session.add(EventRow(seq=newest + 1_000_000, at=await now(session), type="x", data={}))
    await retention.prune(database, Limits(events=newest - first + 2))
    async with database.reading() as session:
        assert await events.bounds(session) == (first, newest + 1_000_000)
    async with database.transaction() as session:
        await session.execute(delete(EventRow).where(EventRow.seq > newest))


async def test_events_and_audit_are_bounded(database: Database) -> None:
    for _ in range(30):
        async with database.transaction(by=Actor("ada")) as session:
            events.append(session, "x")
            await job_row(session)
    async with database.transaction() as session:
        for _ in range(20):
            await audit.record(session, Actor("eve"), "GET /x", outcome="denied")
    before = [row.seq for row in (await _audit(database)) if row.outcome == "allowed"]
    await retention.prune(database, Limits(events=10, refusals=7))
    async with database.reading() as session:
        oldest, newest = await events.bounds(session)
        assert newest - oldest < 10
    rows = await _audit(database)
    assert sum(row.outcome == "denied" for row in rows) == 7
    assert [row.seq for row in rows if row.outcome == "allowed"] == before, "refused requests evict no change"
    await retention.prune(database, Limits(events=0, refusals=0, changes_s=0.0))
    assert await _audit(database) == []
    async with database.transaction() as session:
        events.append(session, "x")
    async with database.reading() as session:
        assert (await events.bounds(session))[1] > newest, "a number is never given again"


async def test_ended_rows_are_removed_by_age(database: Database) -> None:
    async with database.transaction() as session:
        agent, gone = await host_row(session), await host_row(session)
        await hosts.remove(session, gone)
        old = await operations.complete(session, await operations.begin(session, "stop", timeout_s=5, by="a"))
        open_one = await operations.begin(session, "stop", timeout_s=5, by="a")
        ended = await tasks.create(session, agent.id, "savepoint", {})
        await tasks.end(session, ended)
        waiting = await tasks.create(session, agent.id, "savepoint", {})
        token, _ = await tokens.create(session, TokenCreate(name="a", role=Role.VIEWER))
        valid, _ = await tokens.create(session, TokenCreate(name="b", role=Role.VIEWER))
        await tokens.revoke(session, token.id)
        sha = await store_artifact(session, unique().encode())
        used = await store_artifact(session)
        await job_row(session)
        abandoned = unique()[:32]
        await artifacts.put_part(session, abandoned, 0, b"x")
    assert "operations" not in await retention.prune(database)
    async with database.reading() as session:
        assert await session.get(ArtifactPartRow, (abandoned, 0)) is not None, "its upload may not have ended"
    later = await _prune_all(database)
    assert later["operations"] >= 1
    async with database.reading() as session:
        left = {
            OperationRow: (open_one.id, old.id),
            TaskRow: (waiting.id, ended.id),
            TokenRow: (valid.id, token.id),
            ArtifactRow: (used, sha),
            HostRow: (agent.id, gone.id),
        }
        assert await session.get(ArtifactPartRow, (abandoned, 0)) is None
        for table, (stays, goes) in left.items():
            assert await session.get(table, stays) is not None, table
            assert await session.get(table, goes) is None, table


async def _prune_all(database: Database) -> dict[str, int]:
    """Makes all rows old."""
    async with database.transaction() as session:
        await session.execute(
            update(OperationRow).where(OperationRow.ended_at.is_not(None)).values(ended_at=clock(-60))
        )
        await session.execute(update(TaskRow).where(TaskRow.ended_at.is_not(None)).values(ended_at=clock(-60)))
        await session.execute(update(TokenRow).where(TokenRow.revoked_at.is_not(None)).values(revoked_at=clock(-60)))
        await session.execute(update(ArtifactRow).values(created_at=clock(-60)))
        await session.execute(update(ArtifactPartRow).values(stored_at=clock(-60)))
        await session.execute(update(HostRow).values(heartbeat_at=clock(-60)))
        await session.execute(update(JobRow).where(JobRow.deleted_at.is_not(None)).values(deleted_at=clock(-60)))
    limits = Limits(
        ended_operations_s=30,
        ended_tokens_s=30,
        unused_artifacts_s=30,
        unfinished_uploads_s=30,
        removed_hosts_s=30,
        deleted_jobs_s=30,
    )
    return await retention.prune(database, limits)


async def test_a_deleted_job_is_removed_with_its_rows_unless_it_has_savepoints(database: Database) -> None:
    file = EventFile()
    file.start(1)
    file.epoch(1)
    created = []
    for number in range(2):
        async with database.transaction() as session:
            job = await job_row(session)
            run = await run_row(session, job)
            await ingest(session, run.id, 0, file.lines)
            await push_log(session, run.id, 0, "x\n")
            if number:
                saved = await savepoints.create(session, job, name="s", location="x")
            created.append(await jobs.delete(session, job))
    await _prune_all(database)
    async with database.reading() as session:
        with pytest.raises(NotFound):
            await jobs.get(session, created[0].id, deleted=True)
        assert (await jobs.get(session, created[1].id, deleted=True)).id == created[1].id
        assert (await savepoints.get(session, saved.id)).job == created[1].id
        assert await artifacts.get(session, created[1].artifact)
    assert await count(database, LogChunkRow, LogChunkRow.job == created[0].id) == 0
    assert await count(database, LogChunkRow, LogChunkRow.job == created[1].id) == 1


async def test_a_stale_leader_removes_nothing(database: Database) -> None:
    async def check(_session: Any) -> None:
        raise ConcurrentUpdate("Another replica leads.")

    async with database.transaction() as session:
        events.append(session, "x")
        moment = await now(session)
    with pytest.raises(ConcurrentUpdate):
        await retention.prune(database, Limits(events=0), check=check)
    async with database.reading() as session:
        assert (await events.bounds(session))[1] > 0
        assert await now(session) > moment - timedelta(seconds=1)
