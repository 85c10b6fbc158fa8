"""Ingestion stores each event once, in any partition into pushes."""

from __future__ import annotations

import asyncio
import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from clonos.errors import NotFound, SpecError
from clonos.resources.jobs import OperatorMetrics
from clonos_api.reconcile import tidying
from clonos_api.store import (
    counters,
    events,
    generations,
    job_exceptions,
    jobs,
    logs,
    progress,
    recoveries,
    runs,
    views,
)
from clonos_api.store.db.clock import now
from clonos_api.store.db.database import Database
from clonos_api.store.tables import (
    CounterRow,
    EpochRow,
    GenerationRow,
    JobRow,
    LogChunkRow,
    RecoveryRow,
    RunRow,
)
from support.stored import EventFile, host_row, ingest, job_row, push_log, receive_now, run_row

pytestmark = pytest.mark.anyio


async def a_started_run(database: Database) -> RunRow:
    async with database.transaction() as session:
        return await run_row(session, host=await host_row(session, "the-host"))


async def tidied(database: Database) -> int:
    async with database.transaction() as session:
        return await tidying.tidy(session)


async def push(database: Database, run: str, file: EventFile, first: int = 0, last: int | None = None) -> int:
    async with database.transaction() as session:
        return await ingest(session, run, file.offset(first), file.lines[first:last])


async def everything(database: Database, job: str) -> list[Any]:
    """All rows that ingestion wrote for a job."""
    async with database.reading() as session:
        actual_rows: list[Any] = [await counters.of_job(session, job)]
        actual = await jobs.get(session, job)
        assert actual.metrics is not None
        metrics = {name: value for name, value in actual.metrics.items() if name != "received_at"}  # a time of now
        for query in metrics["queries"].values():
            query["waiting_since"] = query["waiting_since"] is not None  # likewise
        actual_rows.append((actual.generation, actual.restarts, actual.observed_version, metrics))
        for table in (GenerationRow, EpochRow, RecoveryRow):
            rows = await session.scalars(select(table).where(table.job == job).order_by(*table.__table__.primary_key))
            names = [column.key for column in table.__table__.columns if column.key not in ("id", "job", "run")]
            actual_rows.append([[getattr(row, name) for name in names] for row in rows])
        actual_rows.append([row.failure for row in (await job_exceptions.page(session, job)).rows])
        return actual_rows


def a_life() -> EventFile:
    """Two claims and a crash, two queries, every kind of event."""
    file = EventFile()
    file.write_event("lint", code="CL001")
    file.start(1)
    for number in range(6):
        file.epoch(number)
    file.epoch(0, query="other", records_in=1, records_out=1)
    file.write_event("lag", query="out", topics={"in": 7}, partitions={"in": {"0": 5, "1": 2}})
    file.write_event("open-transactions", 0, topics={"words": file.at})
    file.restart(2)
    file.write_event("open-transactions", 0, topics={"letters": file.at})
    file.write_event("open-transactions", 0, generation=1, topics={"old": file.at})
    judge = {"recorded": 0, "replayed": 5, "bytes": 0}
    file.epoch(
        6,
        replay=True,
        skipped_lanes=1,
        published_lanes=3,
        records_out=8,
        replayed_determinants=5,
        operators={"judge": judge},
    )
    file.write_event("truncated", query="out", partitions=2)
    file.start(3)  # the process was killed
    file.epoch(6, replay=True, records_out=8, skipped_lanes=3, published_lanes=3)  # the epoch had ended before
    judge = {"recorded": 3, "replayed": 1, "bytes": 240}
    file.epoch(7, operators={"judge": judge}, recorded_bytes=240, published_lanes=2)
    file.write_event("state", state="STOPPING")
    file.write_event("state", state="STOPPED")
    file.write_event("stopped")
    return file


async def test_ingestion_records_the_life_of_a_job(database: Database) -> None:
    run = await a_started_run(database)
    file = a_life()
    assert await push(database, run.id, file) == file.offset(len(file.lines))
    async with database.reading() as session:
        job = await jobs.get(session, run.job)
        assert (job.generation, job.restarts, job.observed_version, job.row_version) == (3, 2, 1, 1)
        actual_rows = (await generations.page(session, job.id)).rows
        assert [(item.generation, item.cause, item.attempt, item.epochs, item.records) for item in actual_rows] == [
            (3, "crash", 2, 1, 20),
            (2, "restart", 1, 1, 8),
            (1, "start", 1, 7, 121),
        ]
        assert all(item.ended_at is not None for item in actual_rows)
        sums = await counters.of_job(session, job.id)
        assert sums["epochs"] == 9
        assert sums["records_in"] == 6 * 10 + 1 + 10 + 10, "what a replay reads again is no new input"
        assert sums["records_out"] == 6 * 20 + 1 + 8 + 20
        assert (sums["epochs_failed"], sums["epochs_replayed"], sums["recoveries"]) == (1, 2, 2)
        assert sums["truncations"] == 1
        epoch_row = await progress.get(session, job.id, 6)
        assert (epoch_row.trigger, epoch_row.generation, epoch_row.records_out, epoch_row.retained) == (
            "REPLAY",
            3,
            8,
            True,
        )
        (trouble,) = (await job_exceptions.page(session, job.id)).rows
        assert (trouble.generation, trouble.failure["domain"], trouble.failure["retry"]) == (1, "run", True)
        metrics = await progress.metrics(session, job)
        assert metrics.queries["out"].epochs == 8
        assert metrics.queries["out"].lag == {"in": 7}
        assert metrics.queries["out"].partition_lag == {"in": {"0": 5, "1": 2}}
        assert metrics.queries["out"].operators == {"judge": OperatorMetrics(recorded=3, replayed=6, bytes=240)}
        assert (metrics.queries["out"].published_lanes, metrics.queries["out"].recorded_bytes) == (5, 240)
        assert metrics.open_transactions == {}, "a claim ends what its predecessors had open, and so does the end"
        assert epoch_row.published_lanes == 3, "and not twice as many"
        assert (sums["epochs_timed"], sums["epochs_ms"]) == (10, 500)
        assert metrics.queries["out"].epoch == 7
        assert metrics.restarts == 2
        actual = await progress.checkpoints(session, job.id, limit=3)
        assert (actual.counts.completed, actual.counts.failed, actual.counts.restored) == (9, 1, 2)
        assert [epoch.epoch for epoch in actual.history] == [7, 6, 0]
        assert actual.latest.restored is not None
        assert actual.latest.restored.epoch == 6
        assert actual.summary.duration_ms["p50"] == 50
        assert (await progress.causal_log(session, job)).truncations == 1
        types = [event.type for event in await events.after(session, 0, job=job.id)]
        assert types.count("job.generation") == 3
        assert types.count("job.recovery.ended") == 2


async def test_recoveries_have_phases_and_a_gap(database: Database) -> None:
    run = await a_started_run(database)
    await push(database, run.id, a_life())
    async with database.reading() as session:
        crash, restart = (await recoveries.page(session, run.job)).rows
        assert (restart.body["cause"], crash.body["cause"]) == ("restart", "crash")
        assert restart.body["failure"]["error"] == "epoch-failed"
        assert (restart.body["failed_generation"], restart.body["generation"]) == (1, 2)
        assert [phase["name"] for phase in restart.body["phases"]] == ["start", "claim", "restore", "replay", "commit"]
        # From the restart: state, claimed, two states, epoch; a tenth each.
        assert restart.body["downtime_ms"] == pytest.approx(500, abs=1)
        assert restart.body["skipped_lanes"] == 1
        assert restart.body["replayed_records"] == 10
        total = sum(phase["duration_ms"] for phase in restart.body["phases"])
        assert restart.ended_at is not None
        assert total == pytest.approx((restart.ended_at - restart.started_at).total_seconds() * 1000, abs=1)


@pytest.mark.parametrize("seed", range(3))
async def test_repeated_overlapping_and_split_pushes_have_the_same_result(database: Database, seed: int) -> None:
    file = a_life()
    whole, pieces = await a_started_run(database), await a_started_run(database)
    await push(database, whole.id, file)
    await push(database, whole.id, file)
    chance = random.Random(seed)
    have = 0
    while have < len(file.lines):
        first = chance.randint(max(0, have - 5), have)
        last = chance.randint(first, min(len(file.lines), have + 4))
        answer = await push(database, pieces.id, file, first, last)
        have = max(have, last)
        assert answer == file.offset(have)
    assert await everything(database, pieces.job) == await everything(database, whole.job)


async def test_many_push_the_same_at_once(database: Database) -> None:
    file = a_life()
    single, concurrent = await a_started_run(database), await a_started_run(database)
    await push(database, single.id, file)
    await asyncio.gather(*(push(database, concurrent.id, file) for _ in range(8)))
    assert await everything(database, concurrent.job) == await everything(database, single.job)


async def test_concurrent_pushes_of_two_runs_of_one_job(database: Database) -> None:
    async with database.transaction() as session:
        job = await job_row(session)
        first, second = await run_row(session, job), await run_row(session, job)
    old, new = EventFile(), EventFile()
    old.start(1)
    new.at += 100
    new.start(2)
    for number in range(20):
        old.epoch(number)
        new.epoch(20 + number)

    async def push_lines(run: RunRow, file: EventFile) -> None:
        for number in range(0, len(file.lines), 3):
            await push(database, run.id, file, number, number + 3)

    await asyncio.gather(push_lines(first, old), push_lines(second, new))
    async with database.reading() as session:
        actual = await jobs.get(session, job.id)
        assert actual.generation == 2
        assert actual.metrics is not None
        assert actual.metrics["queries"]["out"]["records_out"] == 40 * 20
        actual_rows = (await generations.page(session, job.id)).rows
        assert [(item.generation, item.epochs, item.ended_at is None) for item in actual_rows] == [
            (2, 20, True),
            (1, 20, False),
        ]


async def test_a_gap_is_requested_again_or_skipped(database: Database) -> None:
    run = await a_started_run(database)
    file = a_life()
    assert await push(database, run.id, file, 0, 3) == file.offset(3)
    assert await push(database, run.id, file, 5) == file.offset(3), "the missing lines come first"
    assert await push(database, run.id, file, 0, 0) == file.offset(3), "a push without lines asks"
    async with database.transaction() as session:
        end = await ingest(session, run.id, file.offset(5), file.lines[5:6], gap=True)
        assert end == file.offset(6)
        assert await ingest(session, run.id, end + 100, [], gap=True) == end + 100


async def test_lines_of_another_file_are_refused(database: Database) -> None:
    run = await a_started_run(database)
    file = a_life()
    await push(database, run.id, file, 0, 3)
    with pytest.raises(SpecError, match="middle of a line"):
        async with database.transaction() as session:
            await ingest(session, run.id, file.offset(2), ["x" * 1000])
    with pytest.raises(NotFound):
        await push(database, "nobody", file)


HOSTILE = [
    "",
    "{",
    "null",
    "[]",
    '{"event": 1, "at": 1}',
    '{"event": "epoch", "at": 1}',
    '{"event": "epoch", "at": "x"}',
    '{"event": "claimed", "at": 1e300}',
    '{"event": "claimed", "at": 5, "generation": 99999999999999999999, "lineage": 1}',
    '{"event": "claimed", "at": 5, "generation": -1, "lineage": 1}',
    '{"event": "claimed", "at": 5, "generation": true, "lineage": "x"}',
    '{"event": "lag", "at": 5, "query": "out", "topics": []}',
    '{"event": "lag", "at": 5, "query": "out", "topics": {"a": -1}}',
    '{"event": "lag", "at": 5, "query": "out", "topics": {}, "partitions": []}',
    '{"event": "lag", "at": 5, "query": "out", "topics": {}, "partitions": {"a": {"0": "x"}}}',
    '{"event": "open-transactions", "at": 5, "topics": {"a": 1e300}}',
    '{"event": "open-transactions", "at": 5, "topics": [["a", 5]]}',
    '{"event": "retention", "at": 5, "query": "out", "topics": {"a": 101}}',
    '{"event": "failed", "at": 5, "error": "a\\u0000b", "what": "\\ud800", "generation": 1}',
    '{"event": "epo{"event": "state", "at": 5}',
    '{"event": "state", "at": NaN}',
    '{"event": "' + "[" * 5000,
    "[" * 100_000,
    "é\u2028\x85",
]


async def test_corrupt_lines_do_not_stop_ingestion(database: Database) -> None:
    run = await a_started_run(database)
    file = EventFile()
    file.start(1)
    file.lines += HOSTILE
    base = {"event": "epoch", "at": 5, "generation": 1, "query": "out", "epoch": 1, "duration_ms": 1, "records_out": 1}
    for wrong in (
        {"epoch": 2**63},
        {"epoch": -1},
        {"epoch": None},
        {"query": "q" * 101},
        {"query": ""},
        {"query": 7},
        {"records_out": 2**60},
        {"records_out": "many"},
        {"duration_ms": "long"},
        {"offsets": {"a": 1}},
        {"duration_ms": "nan"},
        {"duration_ms": -5},
        {"duration_ms": 1e18},
        {"duration_ms": True},
        {"spans": 3},
        {"generation": None},
    ):
        file.lines.append(json.dumps({**base, **wrong}))
    bad = len(file.lines)
    file.epoch(0)
    assert await push(database, run.id, file) == file.offset(len(file.lines))
    async with database.reading() as session:
        sums = await counters.of_job(session, run.job)
        assert sums["epochs"] == 1
        assert sums["unreadable_events"] == bad - 4 - 1, "all but one, which is reported"
        (trouble,) = (await job_exceptions.page(session, run.job)).rows
        assert trouble.failure["error"] == "a\ufffdb"


async def test_a_job_that_moves_to_another_host(database: Database) -> None:
    async with database.transaction() as session:
        job = await job_row(session)
        lost = await run_row(session, job)
    file = EventFile()
    file.start(1)
    file.epoch(0)
    await push(database, lost.id, file)
    failed = datetime.fromtimestamp(file.at + 1, UTC)
    async with database.transaction() as session:
        await runs.lose(session, await runs.get(session, lost.id))
        await recoveries.begin(
            session,
            job.id,
            cause="host-lost",
            failed_generation=1,
            from_host="a",
            at=failed,
            detected_at=failed + timedelta(seconds=1),
        )
        other = await host_row(session)
        run = await run_row(session, job, other)
        await recoveries.record_placement(session, job.id, other.name)
    after = EventFile()
    after.at = file.at + 5
    after.start(2)
    after.epoch(1, replay=True)
    await push(database, run.id, after)
    async with database.reading() as session:
        newest = await generations.newest(session, job.id)
        assert newest is not None
        assert (newest.generation, newest.cause, newest.run) == (2, "host-lost", run.id)
        (recovery,) = (await recoveries.page(session, job.id)).rows
        assert (recovery.body["to_host"], recovery.body["generation"]) == (other.name, 2)
        assert [phase["name"] for phase in recovery.body["phases"]] == [
            "detect",
            "decide",
            "start",
            "claim",
            "restore",
            "replay",
            "commit",
        ]
        assert recovery.ended_at is not None
        total = sum(phase["duration_ms"] for phase in recovery.body["phases"])
        assert total == pytest.approx((recovery.ended_at - recovery.started_at).total_seconds() * 1000, abs=1)


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
        assert [row.body["outcome"] for row in actual] == ["SUPERSEDED", "SUPERSEDED", "COMPLETED"]
        assert [(row.body["failed_generation"], row.body["generation"]) for row in actual] == [
            (1, 2),
            (2, 3),
            (3, 4),
        ]
        assert all(row.ended_at is not None for row in actual)
        actual_rows = [
            event.data["outcome"] for event in await events.after(session, 0, types=["job.recovery.ended"], job=run.job)
        ]
        assert actual_rows == ["SUPERSEDED", "SUPERSEDED", "COMPLETED"]


QUERIES: dict[str, Any] = {"out": {"sink": "KafkaSink"}, "stats": {"sink": "KafkaSink"}}


async def outcomes(database: Database, job: str) -> list[tuple[str | None, float | None]]:
    """Outcome and downtime in milliseconds of the job's recoveries, oldest first."""
    async with database.reading() as session:
        rows = reversed((await recoveries.page(session, job)).rows)
        return [(row.body.get("outcome"), row.body.get("downtime_ms")) for row in rows]


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
        assert [phase["name"] for phase in row.body["phases"]][-2:] == ["commit", "others"]
        assert (row.body["skipped_lanes"], row.body["replayed_records"]) == (3, 20)
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


async def test_a_recovery_without_input_ends_with_the_report_of_its_driver(database: Database) -> None:
    run = await a_started_run(database)
    file = a_killed_driver()
    file.write_event("lag", query="stats", topics={"in": 0}, partitions={})
    file.write_event("lag", query="out", topics={"in": 0}, partitions={})
    await push(database, run.id, file)
    assert await outcomes(database, run.job) == [("IDLE", None)]
    file.epoch(1, after_s=60)  # the next record
    await push(database, run.id, file)
    assert await outcomes(database, run.job) == [("IDLE", None)]


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
        assert (row.ended_at, row.body.get("returned")) == (None, None)


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
        query = ((await jobs.get(session, old.job)).metrics or {})["queries"]["out"]
    assert (query["lag"], query["waiting_since"]) == ({"in": 0}, None)
    assert datetime.fromisoformat(query["at"]).timestamp() == pytest.approx(new.at - 0.1)


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
        query = ((await jobs.get(session, run.job)).metrics or {})["queries"]["stats"]
    assert (query["lag"], query["waiting_since"], query["at"], query["epochs"]) == ({}, None, None, 1)


async def test_records_wait_since_the_first_report_after_an_epoch(database: Database) -> None:
    run = await a_started_run(database)
    file = EventFile()
    file.start(1, queries=QUERIES)

    async def waiting_since() -> datetime | None:
        await push(database, run.id, file)
        async with database.reading() as session:
            since = ((await jobs.get(session, run.job)).metrics or {})["queries"]["out"]["waiting_since"]
        return None if since is None else datetime.fromisoformat(since)

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


async def test_an_epoch_with_unreadable_operators_counts(database: Database) -> None:
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
        assert out.epochs == 5
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


async def test_logs_by_byte_offset(database: Database) -> None:
    run = await a_started_run(database)
    text = "".join(f"line {number} é\n" for number in range(50)) + "half a l"
    data = text.encode()

    async def send(offset: int, piece: bytes, **more: bool) -> int:
        async with database.transaction() as session:
            return await push_log(session, run.id, offset, piece.decode(), **more)

    cut = text.index("line 20")
    first = text[:cut].encode()
    assert await send(0, first) == len(first)
    assert await send(0, first) == len(first), "repeated"
    assert await send(len(first) + 5, b"later") == len(first), "from beyond"
    assert await send(10, data[10:]) == len(data), "overlapping"
    async with database.reading() as session:
        assert (await logs.tail(session, run.job, 3)).lines == ["line 47 é", "line 48 é", "line 49 é"]
        some = await logs.read(session, run.job, "0:0", 30)
        assert some.lines[0] == "line 0 é"
        assert len(some.lines) == 30
        rest = await logs.read(session, run.job, some.next, 1000)
        assert rest.lines[-1] == "line 49 é"
        assert len(rest.lines) == 20
        assert (await logs.read(session, run.job, rest.next)).lines == []
    await send(len(data), b"ine\nnext\n")
    async with database.reading() as session:
        more = await logs.read(session, run.job, rest.next)
        assert more.lines == ["half a line", "next"]
        assert (await logs.read(session, run.job, more.next)).lines == []
        tail = await logs.tail(session, run.job, 1)
        assert (tail.lines, tail.next) == (["next"], more.next)
        for wrong in ("x", "1", "1:-1", "1:x", ":"):
            with pytest.raises(SpecError):
                await logs.read(session, run.job, wrong)
    assert await send(len(data) + 50, b"after a gap\n", gap=True) == len(data) + 62
    async with database.reading() as session:
        assert (await logs.read(session, run.job, more.next)).lines == ["after a gap"]
        assert (await logs.tail(session, "nobody", 5)).lines == []


async def test_a_log_is_bounded_while_it_is_pushed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "KEPT_BYTES", 8000)
    monkeypatch.setattr(logs, "_TRIM_BYTES", 1000)
    run = await a_started_run(database)
    offset = 0
    async with database.transaction() as session:
        for number in range(400):
            offset = await push_log(session, run.id, offset, f"{number:>99}\n")
    async with database.reading() as session:
        remaining = (await logs.read(session, run.job, "0:0", 1000)).lines
        assert 80 <= len(remaining) <= 100
        assert remaining[-1].strip() == "399"
        assert (await logs.tail(session, run.job, 1000)).lines == remaining


async def test_only_the_requested_lines_of_a_log_are_built(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await a_started_run(database)
    async with database.transaction() as session:
        await push_log(session, run.id, 0, "\n" * 262_144)
    built: list[logs.Line] = []

    class Counted(logs.Line):
        def __init__(self, *_: object) -> None:
            built.append(self)

    monkeypatch.setattr(logs, "Line", Counted)
    async with database.reading() as session:
        newest = await logs.newest(session, run.job, 2)
    assert ([line.text for line in newest.lines], newest.more) == (["", ""], True)
    assert len(built) == 2


async def test_the_newest_lines_are_the_last_of_all(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward pages have the same lines as forward pages, also of lines that are split over chunks, and long lines."""
    monkeypatch.setattr(logs, "_LINE", 20)
    run = await a_started_run(database)
    pieces = ["a\nb", "c", "\n", "\n\nd\ne", "f\n", "x" * 25, "yz\ng\n", "\n" * 7, "h", "i\nj", "k" * 30, "l", "m"]
    offset = 0
    for number, piece in enumerate(pieces):
        async with database.transaction() as session:
            offset = await push_log(session, run.id, offset, piece)
            if number % 3 == 2:  # of another run
                row = {"job": run.job, "run": "other", "offset": 9 * number, "size": 9, "text": f"{number}\nof other"}
                session.add(LogChunkRow(**row))
    async with database.reading() as session:
        everything = await logs.following(session, run.job, "0:0", 1000)
        assert not everything.more
        for count in range(len(everything.lines) + 2):
            newest = await logs.newest(session, run.job, count)
            assert newest.lines == everything.lines[len(everything.lines) - min(count, len(everything.lines)) :]
            assert (newest.next, newest.more) == (everything.next, count < len(everything.lines))
        for number, line in enumerate(everything.lines):
            older = await logs.newest(session, run.job, 3, before=line.next)
            assert older.lines == everything.lines[max(0, number - 2) : number + 1]
        loaded: list[logs.Chunk] = []
        after, forward = "0:0", []
        while (page := await logs.following(session, run.job, after, 2, loaded=loaded)).lines:
            forward += page.lines
            after = page.next
        assert forward == everything.lines


async def test_a_page_of_long_lines_is_short(database: Database) -> None:
    run = await a_started_run(database)
    offset = 0
    async with database.transaction() as session:
        for _ in range(10):
            offset = await push_log(session, run.id, offset, f"{'x' * 9_999}\n" * 10)
    async with database.reading() as session:
        sizes, after, more = [], "0:0", True
        while more:
            page = await logs.read(session, run.job, after, 1000)
            after, more = page.next, page.more
            sizes.append(len(page.lines))
    assert (max(sizes), sum(sizes)) == (27, 100)


async def test_ingestion_and_other_writers_do_not_fence_each_other(database: Database) -> None:
    run = await a_started_run(database)
    file = EventFile()
    file.start(1)
    for number in range(40):
        file.epoch(number)

    async def push_lines() -> None:
        for number in range(len(file.lines)):
            await push(database, run.id, file, number, number + 1)

    async def change() -> None:
        for _ in range(20):
            async with database.transaction() as session:
                job = await jobs.get(session, run.job)
                await jobs.change(session, job, restart_nonce=job.restart_nonce + 1)

    await asyncio.gather(push_lines(), change())
    async with database.reading() as session:
        job = await jobs.get(session, run.job)
        assert (job.restart_nonce, job.generation) == (20, 1)
        assert (
            await session.scalars(select(CounterRow.value).where(CounterRow.job == job.id, CounterRow.name == "epochs"))
        ).one() == 40


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
    assert job.metrics is not None
    assert len(job.metrics["queries"]) == 200
    assert sums["unreadable_events"] == 20
