"""Metrics of a job: rates, counts and figures of its queries."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from clonos.resources.jobs import OperatorMetrics
from clonos_api.fleet.facts import read_facts
from clonos_api.fleet.forecasts import Estimates
from clonos_api.fleet.health import Rates, line_of
from clonos_api.store import (
    counters,
    jobs,
    progress,
)
from clonos_api.store.db.clock import now
from clonos_api.store.db.database import Database
from clonos_api.store.tables import (
    JobRow,
)
from component.store.pushes import QUERIES, a_started_run, push
from support.stored import EventFile, host_row, receive_now, run_row

pytestmark = pytest.mark.anyio


async def test_figures_of_an_old_driver_replace_no_newer_ones(database: Database) -> None:
    old = await a_started_run(database)
    file = EventFile()
    file.start(1, queries=QUERIES)
    file.epoch(0)
    await push(database, old.id, file)
    async with database.transaction() as session:
        run = await run_row(session, await jobs.get(session, old.job), await host_row(session))
    new = EventFile()
    new.at = file.at + 60
    new.start(2, queries=QUERIES)
    new.epoch(1)
    new.write_event("lag", query="out", topics={"in": 0}, partitions={})
    await push(database, run.id, new)
    file.write_event("lag", query="out", topics={"in": 5}, partitions={})
    file.epoch(1)
    await push(database, old.id, file)
    async with database.reading() as session:
        query = (await jobs.get(session, old.job)).figures.queries["out"]
    assert (query.lag, query.waiting_since) == ({"in": 0}, None)
    assert query.at.timestamp() == pytest.approx(new.at - 0.1)


async def test_records_wait_since_the_first_report_after_an_epoch(database: Database) -> None:
    run = await a_started_run(database)
    file = EventFile()
    file.start(1, queries=QUERIES)

    async def waiting_since() -> datetime | None:
        await push(database, run.id, file)
        async with database.reading() as session:
            return (await jobs.get(session, run.job)).figures.queries["out"].waiting_since

    file.epoch(0)
    assert await waiting_since() is None
    began = datetime.now(UTC)
    file.write_event("lag", query="out", topics={"in": 5}, partitions={})
    first = await waiting_since()
    assert first is not None
    assert began <= first <= datetime.now(UTC), "by the clock of the control plane"
    file.write_event("lag", query="out", topics={"in": 9}, partitions={})
    assert await waiting_since() == first
    file.epoch(1)
    assert await waiting_since() is None
    file.write_event("lag", query="out", topics={"in": 4}, partitions={})
    second = await waiting_since()
    assert second is not None
    assert second > first
    file.write_event("lag", query="out", topics={"in": 0}, partitions={})
    assert await waiting_since() is None


async def test_late_rows_are_counted_and_reported_for_a_while(database: Database) -> None:
    run = await a_started_run(database)
    file = EventFile()
    file.start(1, queries=QUERIES)
    file.epoch(0)
    file.epoch(1, late_rows=3)
    late_at = file.at - 0.1
    file.epoch(2, late_rows=2)
    await push(database, run.id, file)
    async with database.reading() as session:
        job = await jobs.get(session, run.job)
        query = job.figures.queries["out"]
        assert (await counters.of_job(session, job.id))["late_rows"] == query.late_rows == 5
        newest = query.late_at
        assert newest.timestamp() > late_at
        for seconds, rows in ((60, 5), (3600, None)):
            facts = replace(await read_facts(session), at=newest + timedelta(seconds=seconds))
            late = line_of(job, facts, Estimates(), Rates()).late
            assert (late.rows if late is not None else None) == rows


async def test_open_transactions_are_recorded(database: Database) -> None:
    run = await a_started_run(database)
    file = EventFile()

    async def known() -> dict[str, datetime]:
        await push(database, run.id, file)
        async with database.reading() as session:
            return (await progress.metrics(session, await jobs.get(session, run.job))).open_transactions

    file.start(1)
    file.write_event("open-transactions", topics={"words": file.at})
    file.write_event("retention", query="out", topics={"in": 90})
    file.start(2, delivery={"out": "at-least-once"}, sharing_depth="0")
    assert await known() == {}
    async with database.reading() as session:
        metrics = await progress.metrics(session, await jobs.get(session, run.job))
    assert metrics.queries["out"].retention == {}, "the next reader reports its own retention"
    assert (metrics.delivery, metrics.sharing_depth) == ({"out": "at-least-once"}, "0")
    file.write_event("open-transactions", topics={"words": file.at})
    file.write_event("open-transactions", generation=1, topics={"old": file.at})
    assert list(await known()) == ["words"], "of the newest claim"
    file.write_event("stopped")
    assert await known() == {}


async def test_an_epoch_with_unreadable_operators_is_no_event_of_a_driver(database: Database) -> None:
    run = await a_started_run(database)
    file = EventFile()
    file.start(1)
    for number, operators in enumerate(
        ([], {"a": {"recorded": "x"}}, {"a": 3}, {"a": {"recorded": 1}}, {"a" * 300: {}})
    ):
        file.epoch(number, operators=operators)
    await push(database, run.id, file)
    async with database.reading() as session:
        out = (await progress.metrics(session, await jobs.get(session, run.job))).queries["out"]
        assert out.epochs == 2
        assert out.operators == {"a": OperatorMetrics(recorded=1), "a" * 200: OperatorMetrics()}


async def test_metrics_of_an_earlier_version_are_continued(database: Database) -> None:
    run = await a_started_run(database)
    async with database.transaction() as session:
        row = await session.get_one(JobRow, run.job)
        row.metrics = {"at": None, "restarts": 0, "queries": {"out": {"epoch": 3, "epochs": 4, "records_out": 80}}}
    file = EventFile()
    file.start(1)
    file.epoch(4, published_lanes=2)
    await push(database, run.id, file)
    async with database.reading() as session:
        out = (await progress.metrics(session, await jobs.get(session, run.job))).queries["out"]
        assert (out.epochs, out.records_out, out.published_lanes, out.recorded_determinants) == (5, 100, 2, 3)


@pytest.mark.parametrize("ahead_s", [0, 3600, -3600])
async def test_rates_cover_the_newest_epochs(database: Database, ahead_s: float) -> None:
    """The clock of the driver's host may be ahead of the database's, or behind it."""
    run = await a_started_run(database)
    async with database.reading() as session:
        moment = (await now(session)).timestamp()
    file = EventFile()
    file.at = moment - 40 + ahead_s
    file.start(1)
    file.epoch(0, records_in=100, records_out=100)
    file.at += 30
    for number in range(1, 6):
        file.epoch(number, after_s=1, offsets={"in": {"0": number}})
    file.epoch(5, replay=True, offsets={"in": {"0": 5}})  # the epoch had finished before
    await push(database, run.id, file)
    async with database.reading() as session:
        job = await jobs.get(session, run.job)
        receive_now(job)
        out = (await progress.metrics(session, job)).queries["out"]
        assert (out.records_in_per_s, out.records_out_per_s, out.epoch_ms_p99) == (4.0, 8.0, 50.0)
        (at,) = await progress.offsets(session, job)
        assert (at.epoch, at.offsets) == (5, {"in": {"0": 5}})


async def test_epochs_of_a_host_whose_clock_was_ahead_do_not_count(database: Database) -> None:
    run = await a_started_run(database)
    file = EventFile()
    begin = file.at
    file.at += 3600
    file.start(1)
    file.epoch(0, records_in=900)
    file.at = begin
    file.start(2)
    file.epoch(1)
    await push(database, run.id, file)
    async with database.reading() as session:
        job = await jobs.get(session, run.job)
        receive_now(job)
        assert (await progress.metrics(session, job)).queries["out"].records_in_per_s == 1.0


async def test_a_live_query_has_its_mode_its_rates_and_the_steps_of_its_epoch(database: Database) -> None:
    """Its epoch lasts minutes, and is reported each second."""
    run = await a_started_run(database)
    file = EventFile()
    file.start(1, queries=QUERIES)
    file.write_event("mode", query="out", live=True)
    file.write_event("mode", query="stats", live=False, because="it has the operator Aggregate")
    file.epoch(0)
    for second in range(15):
        counts = {"records_in": 200, "records_out": 100, "published_lanes": 30, "topics_in": {"in": 200}}
        file.epoch(1, after_s=1, live=True, steps=30, **counts)
        if second == 7:
            await push(database, run.id, file)
    await push(database, run.id, file)
    async with database.reading() as session:
        job = await jobs.get(session, run.job)
        receive_now(job)
        queries = (await progress.metrics(session, job)).queries
        live, before = (await progress.page(session, job.id)).rows
    out, stats = queries["out"], queries["stats"]
    assert (out.mode, out.because) == ("live", "")
    assert (stats.mode, stats.because) == ("epochs", "it has the operator Aggregate")
    assert (out.records_in_per_s, out.records_out_per_s) == (pytest.approx(200, rel=0.1), pytest.approx(100, rel=0.1))
    assert (live.live, live.steps, live.records_in, live.topics_in) == (True, 450, 3000, {"in": 3000})
    assert (before.live, before.steps, before.records_in) == (False, 0, 10)
    assert (out.epochs, out.records_in) == (16, 3010)
    file.start(2, queries=QUERIES)
    await push(database, run.id, file)
    async with database.reading() as session:
        queries = (await progress.metrics(session, await jobs.get(session, run.job))).queries
    assert {name: (query.mode, query.because) for name, query in queries.items()} == dict.fromkeys(
        ("out", "stats"), ("epochs", "")
    ), "the next driver's job asks for epochs"


async def test_the_rate_of_a_long_epoch_is_that_of_its_duration(database: Database) -> None:
    run = await a_started_run(database)
    file = EventFile()
    file.start(1)
    file.epoch(0, records_in=6000, records_out=6000, duration_ms=60_000)
    await push(database, run.id, file)
    async with database.reading() as session:
        job = await jobs.get(session, run.job)
        receive_now(job)
        assert (await progress.metrics(session, job)).queries["out"].records_in_per_s == 100.0


async def test_a_job_has_a_limited_number_of_queries(database: Database) -> None:
    """Job code writes the events, and each query is stored and shown."""
    run = await a_started_run(database)
    file = EventFile()
    file.start(1)
    for number in range(210):
        file.epoch(0, query=f"query-{number}")
        file.write_event("lag", query=f"query-{number}", topics={"in": 1}, partitions={})
    await push(database, run.id, file)
    async with database.reading() as session:
        job = await jobs.get(session, run.job)
        sums = await counters.of_job(session, run.job)
    assert len(job.figures.queries) == 200
    assert sums["unreadable_events"] == 20
