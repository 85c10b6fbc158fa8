"""Recoveries: their phases, when they end, and what a query behind another one changes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sqlalchemy import update

from clonos_api.reconcile import tidying
from clonos_api.store import (
    counters,
    events,
    generations,
    jobs,
    recoveries,
    views,
)
from clonos_api.store.db.clock import now
from clonos_api.store.db.database import Database
from clonos_api.store.tables import (
    JobRow,
)
from component.store.pushes import QUERIES, a_life, a_started_run, push
from support.stored import EventFile, host_row, job_row, run_row

pytestmark = pytest.mark.anyio


async def tidied(database: Database) -> int:
    async with database.transaction() as session:
        return await tidying.tidy(session)


async def test_recoveries_have_phases_and_a_gap(database: Database) -> None:
    run = await a_started_run(database)
    await push(database, run.id, a_life())
    async with database.reading() as session:
        crash, restart = (await recoveries.page(session, run.job)).rows
        assert (restart.body.cause, crash.body.cause) == ("restart", "crash")
        assert restart.body.failure.error == "epoch-failed"
        assert (restart.body.failed_generation, restart.body.generation) == (1, 2)
        assert [phase.name for phase in restart.body.phases] == ["start", "claim", "restore", "replay", "commit"]
        # From the restart: state, claimed, two states, epoch; a tenth each.
        assert restart.body.downtime_ms == pytest.approx(500, abs=1)
        assert restart.body.skipped_lanes == 1
        assert restart.body.replayed_records == 10
        total = sum(phase.duration_ms for phase in restart.body.phases)
        assert restart.ended_at is not None
        assert total == pytest.approx((restart.ended_at - restart.started_at).total_seconds() * 1000, abs=1)


async def test_a_second_failure_before_the_first_epoch_ends_the_recovery_before(database: Database) -> None:
    run = await a_started_run(database)
    file = EventFile()
    file.start(1)
    file.epoch(0)
    file.start(2)  # killed
    file.start(3)  # killed again, before an epoch
    file.restart(4)
    file.epoch(1)
    await push(database, run.id, file)
    async with database.reading() as session:
        actual = list(reversed((await recoveries.page(session, run.job)).rows))
        assert [row.body.outcome for row in actual] == ["SUPERSEDED", "SUPERSEDED", "COMPLETED"]
        assert [(row.body.failed_generation, row.body.generation) for row in actual] == [
            (1, 2),
            (2, 3),
            (3, 4),
        ]
        assert all(row.ended_at is not None for row in actual)
        actual_rows = [
            event.data["outcome"] for event in await events.after(session, 0, types=["job.recovery.ended"], job=run.job)
        ]
        assert actual_rows == ["SUPERSEDED", "SUPERSEDED", "COMPLETED"]


async def outcomes(database: Database, job: str) -> list[tuple[str | None, float | None]]:
    """Outcome and downtime in milliseconds of the job's recoveries, oldest first."""
    async with database.reading() as session:
        rows = reversed((await recoveries.page(session, job)).rows)
        return [(row.body.outcome, row.body.downtime_ms) for row in rows]


def a_killed_driver() -> EventFile:
    """Two queries publish, their driver is killed, and the next one claims 1.1 s after the last event."""
    file = EventFile()
    file.start(1, queries=QUERIES)
    file.epoch(0)
    file.epoch(0, query="stats")
    file.at += 1
    file.start(2, queries=QUERIES)
    return file


async def test_a_recovery_ends_with_its_last_query(database: Database) -> None:
    run = await a_started_run(database)
    file = a_killed_driver()
    file.epoch(1, replay=True, skipped_lanes=1)
    assert await push(database, run.id, file) == file.offset(len(file.lines))
    assert await outcomes(database, run.job) == [(None, None)]
    async with database.reading() as session:
        (row,) = (await recoveries.page(session, run.job)).rows
        assert views.recovery(row).waits == ["stats"]
    async with database.transaction() as session:
        running = {"state": "RUNNING", "state_since": await now(session)}
        await session.execute(update(JobRow).where(JobRow.id == run.job).values(**running))
    await tidied(database)  # it may end recoveries of earlier tests
    assert await outcomes(database, run.job) == [(None, None)], "it waits for the other query"
    file.epoch(2)
    file.epoch(1, query="stats", after_s=2, replay=True, skipped_lanes=2)
    await push(database, run.id, file)
    # The failure is the last event before the claim, of the epoch of `stats`.
    assert await outcomes(database, run.job) == [("COMPLETED", pytest.approx(3_600, abs=1))]
    async with database.reading() as session:
        (row,) = (await recoveries.page(session, run.job)).rows
        assert [phase.name for phase in row.body.phases][-2:] == ["commit", "others"]
        assert (row.body.skipped_lanes, row.body.replayed_records) == (3, 20)
        shown = views.recovery(row)
        assert shown.waits == []
        downtimes = {query: returned.downtime_ms for query, returned in shown.returned.items()}
        assert downtimes == {"out": pytest.approx(1_500, abs=1), "stats": pytest.approx(3_600, abs=1)}
        assert shown.ended_at == shown.returned["stats"].at


@pytest.mark.parametrize("idle_first", [True, False])
async def test_a_query_without_unread_records_has_returned(database: Database, idle_first: bool) -> None:
    run = await a_started_run(database)
    file = a_killed_driver()
    if idle_first:
        file.write_event("lag", query="stats", topics={"in": 0}, partitions={})
    file.epoch(1)
    if not idle_first:
        file.write_event("lag", query="stats", topics={"in": 3}, partitions={"in": {"0": 3}})
        await push(database, run.id, file)
        assert await outcomes(database, run.job) == [(None, None)], "it has unread records"
        file.write_event("lag", query="stats", topics={"in": 0}, partitions={})
    await push(database, run.id, file)
    ((outcome, downtime_ms),) = await outcomes(database, run.job)
    assert outcome == "COMPLETED"
    async with database.reading() as session:
        assert (await counters.of_job(session, run.job))["recoveries"] == 1
    assert downtime_ms == pytest.approx(1_600 if idle_first else 1_500, abs=1)


@pytest.mark.parametrize("ready_first", [True, False, None])
async def test_a_recovery_without_input_ends_when_all_queries_are_ready(
    database: Database, ready_first: bool | None
) -> None:
    """Its downtime and its phases end then, also if records follow. An older driver (None) reports only its lag."""
    run = await a_started_run(database)
    file = a_killed_driver()
    if ready_first is not None:
        file = EventFile()
        file.start(1, queries=QUERIES)
        file.epoch(0)
        file.epoch(0, query="stats")
        file.at += 1
        file.start(2, queries=QUERIES, reports_ready=True)
    for query in ("stats", "out"):
        if ready_first is False:
            file.write_event("lag", query=query, topics={"in": 0}, partitions={})
            await push(database, run.id, file)
            assert await outcomes(database, run.job) == [(None, None)], "a lag alone does not show that it can read"
        if ready_first is not None:
            file.write_event("ready", query=query)
        if ready_first is not False:
            file.write_event("lag", query=query, topics={"in": 0}, partitions={})
    await push(database, run.id, file)
    downtime_ms = {True: 1_700, False: 1_800, None: 1_600}[ready_first]
    assert await outcomes(database, run.job) == [("IDLE", pytest.approx(downtime_ms, abs=1))]
    file.epoch(1, after_s=60)  # the next record
    first_record = file.at - 0.1
    file.epoch(2)
    await push(database, run.id, file)
    async with database.reading() as session:
        shown = views.recovery((await recoveries.page(session, run.job)).rows[0])
    assert (shown.outcome, shown.downtime_ms) == ("IDLE", pytest.approx(downtime_ms, abs=1))
    names = [phase.name for phase in shown.phases]
    assert names[:4] == ["start", "claim", "restore", "ready"], names
    assert sum(phase.duration_ms for phase in shown.phases) == pytest.approx(downtime_ms, abs=1)
    assert {query: returned.idle for query, returned in shown.returned.items()} == {"stats": True, "out": True}
    assert shown.first_record_at is not None
    assert shown.first_record_at.timestamp() == pytest.approx(first_record, abs=0.2)


async def test_the_old_driver_cannot_end_a_recovery(database: Database) -> None:
    old = await a_started_run(database)
    file = EventFile()
    file.start(1, queries=QUERIES)
    file.epoch(0)
    await push(database, old.id, file)
    async with database.transaction() as session:
        job, host = await jobs.get(session, old.job), await host_row(session)
        failed = datetime.fromtimestamp(file.at, UTC)
        await recoveries.begin(session, job.id, cause="host-lost", failed_generation=1, from_host="a", at=failed)
        run = await run_row(session, job, host)
    new = EventFile()
    new.start(2, queries=QUERIES)
    await push(database, run.id, new)
    file.write_event("lag", query="stats", topics={"in": 0}, partitions={})
    await push(database, old.id, file)
    async with database.reading() as session:
        (row,) = (await recoveries.page(session, old.job)).rows
        assert (row.ended_at, row.body.returned) == (None, {})


async def test_a_query_that_a_new_version_does_not_have_waits_for_nothing(database: Database) -> None:
    run = await a_started_run(database)
    file = EventFile()
    file.start(1, queries=QUERIES)
    file.epoch(0)
    file.epoch(0, query="stats")
    file.write_event("lag", query="stats", topics={"in": 5}, partitions={"in": {"0": 5}})
    file.start(2, queries={"out": QUERIES["out"]})
    file.epoch(1)
    await push(database, run.id, file)
    assert await outcomes(database, run.job) == [("COMPLETED", pytest.approx(500, abs=1))]
    async with database.reading() as session:
        query = (await jobs.get(session, run.job)).figures.queries["stats"]
    assert (query.lag, query.waiting_since, query.at, query.epochs) == ({}, None, None, 1)


async def test_a_query_that_never_published_is_not_waited_for(database: Database) -> None:
    run = await a_started_run(database)
    file = EventFile()
    file.start(1, queries=QUERIES)
    file.epoch(0)
    file.start(2, queries=QUERIES)
    file.epoch(1)
    await push(database, run.id, file)
    assert await outcomes(database, run.job) == [("COMPLETED", pytest.approx(500, abs=1))]


async def test_the_downtime_counts_from_the_first_of_several_failures(database: Database) -> None:
    run = await a_started_run(database)
    file = a_killed_driver()  # silent for 1.1 s before its claim, and 0.4 s after it
    file.at += 1
    file.start(3, queries=QUERIES)
    file.epoch(1)
    file.epoch(1, query="stats")
    await push(database, run.id, file)
    assert await outcomes(database, run.job) == [("SUPERSEDED", None), ("COMPLETED", pytest.approx(3_000, abs=1))]


async def test_a_job_that_ends_before_its_last_query_returned_has_recovered(database: Database) -> None:
    run = await a_started_run(database)
    file = a_killed_driver()
    file.epoch(1)
    await push(database, run.id, file)
    async with database.transaction() as session:
        await recoveries.abandon(session, run.job)
    assert await outcomes(database, run.job) == [("COMPLETED", pytest.approx(1_500, abs=1))]


async def test_a_clean_stop_and_start_is_no_recovery(database: Database) -> None:
    async with database.transaction() as session:
        job = await job_row(session)
        first, second = await run_row(session, job), await run_row(session, job)
    for generation, run in ((1, first), (2, second)):
        file = EventFile()
        file.start(generation)
        file.epoch(generation)
        file.write_event("state", state="STOPPED")
        file.write_event("stopped")
        await push(database, run.id, file)
    async with database.reading() as session:
        assert [row.cause for row in (await generations.page(session, job.id)).rows] == ["start", "start"]
        assert (await recoveries.page(session, job.id)).rows == []
        assert (await jobs.get(session, job.id)).restarts == 0
