"""Figures over time: each epoch counts once in its interval, and old intervals are removed."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select

from clonos_api.store import job_series, retention, series
from clonos_api.store.db.database import Database
from clonos_api.store.series import LONG_S, SHORT_S
from clonos_api.store.tables import RecoveryRow, SeriesRow
from support.stored import EventFile, host_row, ingest, run_row

pytestmark = pytest.mark.anyio


async def a_job(database: Database, file: EventFile, *, each: int = 1) -> str:
    """A job whose driver has pushed these events, in pushes of `each` events."""
    async with database.transaction() as session:
        run = await run_row(session, host=await host_row(session))
    for number in range(0, len(file.lines), each):
        async with database.transaction() as session:
            await ingest(session, run.id, file.offset(number), file.lines[number : number + each])
    return run.job


async def test_intervals_have_the_sums_of_their_epochs(database: Database) -> None:
    file = EventFile()
    file.at = beginning = (time.time() // 600 - 6) * 600  # an hour ago, at the beginning of a long interval
    file.start(1)
    for number in range(30):
        file.epoch(number, after_s=1.0)
    file.write_event("lag", query="out", topics={"in": 7}, partitions={})
    file.epoch(0, query="other", after_s=60.0, records_in=1, records_out=0)
    job = await a_job(database, file)
    since = datetime.fromtimestamp(beginning, UTC)
    async with database.reading() as session:
        short = await series.read(session, job, width_s=SHORT_S, since=since)
        other, out = await series.read(session, job, width_s=LONG_S, since=since)
        thirds = await series.read(session, job, width_s=SHORT_S, since=since, wider=3)
    mine = [interval for interval in short if interval.query == "out"]
    assert [interval.start for interval in mine] == [since + timedelta(seconds=10 * number) for number in range(4)]
    assert sum(interval.tally.epochs for interval in mine) == 30
    assert [interval.tally.lag for interval in mine] == [{}, {}, {}, {"in": 7}]
    assert (out.query, out.tally.records_in, out.tally.records_out) == ("out", 300, 600)
    assert (other.query, other.tally.records_in) == ("other", 1)
    assert [interval.tally.epochs for interval in thirds if interval.query == "out"] == [29, 1]
    assert {interval.length for interval in thirds} == {timedelta(seconds=30)}


async def test_figures_do_not_depend_on_the_pushes(database: Database) -> None:
    file = EventFile()
    file.at = time.time() // 600 * 600 - 30
    file.start(1)
    for number in range(40):
        file.epoch(number, after_s=1.0, query=("out", "other")[number % 3 == 0])
        file.write_event("lag", query="out", topics={"in": number}, partitions={})

    async def figures(each: int) -> list[tuple[str, datetime, series.Tally]]:
        job = await a_job(database, file, each=each)
        async with database.reading() as session:
            since = datetime.fromtimestamp(file.at - 3600, UTC)
            intervals = await series.read(session, job, width_s=SHORT_S, since=since)
        return [(interval.query, interval.start, interval.tally) for interval in intervals]

    assert await figures(1) == await figures(7) == await figures(len(file.lines)) != []


async def test_a_replay_of_a_finished_epoch_counts_no_records(database: Database) -> None:
    file = EventFile()
    file.at = time.time() // 600 * 600
    file.start(1)
    file.epoch(0, latencies={"40": 9, "44": 1})
    file.start(2)
    file.epoch(0, replay=True, latencies={"60": 10})
    job = await a_job(database, file)
    async with database.reading() as session:
        (interval,) = await series.read(session, job, width_s=LONG_S, since=datetime(2020, 1, 1, tzinfo=UTC))
    tally = interval.tally
    assert (tally.epochs, tally.replayed, tally.records_in, tally.records_out) == (2, 1, 10, 20)
    assert tally.latencies == {"40": 9, "44": 1}


async def test_the_newest_range_has_what_happened_to_the_job(database: Database) -> None:
    file = EventFile()
    file.at = (time.time() - 60) // 60 * 60  # the beginning of an interval of each range
    file.start(1)
    file.epoch(0)
    file.start(2)
    file.epoch(1, latencies={"40": 9, "44": 1})
    file.epoch(2, records_in=0)
    job = await a_job(database, file)
    async with database.reading() as session:
        shown = {span: await job_series.of_job(session, job, span) for span in job_series.RANGES}
        (recovery,) = await session.scalars(select(RecoveryRow).where(RecoveryRow.job == job))
    for newest in shown.values():
        (point,) = [point for point in newest.queries["out"] if point.epochs]
        seconds = min(newest.interval_s, (newest.until - point.at).total_seconds())
        assert point.records_in_per_s == pytest.approx(20 / seconds)
        assert point.epochs == 3
        assert point.epoch_ms_p50 == pytest.approx(50, rel=0.2)
        assert (point.latency_ms_p50, point.latency_ms_p99) == (2**10, 2**11)
        kinds = {annotation.kind: annotation for annotation in newest.annotations}
        assert kinds["recovery"].text == "crash"
        assert kinds["recovery"].at == recovery.started_at
        assert kinds["version"].text == "version 1"
    assert shown["5m"].interval_s < shown["1h"].interval_s < shown["24h"].interval_s < shown["7d"].interval_s


async def test_old_intervals_are_removed(database: Database) -> None:
    file = EventFile()
    file.at = time.time() - 60
    file.start(1)
    file.epoch(0)
    job = await a_job(database, file)
    async with database.transaction() as session:
        for width_s, kept_s in series.KEPT_S.items():
            for age_s in (kept_s - 600, kept_s + 600):
                start = datetime.fromtimestamp((time.time() - age_s) // width_s * width_s, UTC)
                session.add(SeriesRow(job=job, query="out", width_s=width_s, start=start, body=series.Tally()))

    async def stored() -> dict[int, int]:
        async with database.reading() as session:
            rows = select(SeriesRow.width_s, func.count()).where(SeriesRow.job == job).group_by(SeriesRow.width_s)
            return dict((await session.execute(rows)).all())

    assert await stored() == {SHORT_S: 3, LONG_S: 3}
    await retention.prune(database)
    assert await stored() == {SHORT_S: 2, LONG_S: 2}
