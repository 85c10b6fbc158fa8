"""Ingestion stores each event once, in any partition into pushes."""

from __future__ import annotations

import asyncio
import json
import random
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from clonos.errors import NotFound, SpecError
from clonos.resources.jobs import OperatorMetrics
from clonos_api.store import (
    counters,
    events,
    generations,
    job_exceptions,
    job_graph,
    jobs,
    progress,
    recoveries,
    runs,
)
from clonos_api.store.db.database import Database
from clonos_api.store.tables import (
    CounterRow,
    RunRow,
)
from component.store.pushes import a_life, a_started_run, everything, push
from support.stored import EventFile, host_row, ingest, job_row, run_row

pytestmark = pytest.mark.anyio


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
        assert sums["records_in"] == 6 * 10 + 1 + 10 + 10, "what a replay reads again is not new input"
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
        assert (trouble.generation, trouble.failure.domain, trouble.failure.retry) == (1, "run", True)
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


async def test_the_graph_is_of_the_newest_claim_of_a_push(database: Database) -> None:
    """A driver that restarts claims the log several times between two pushes."""
    run = await a_started_run(database)
    file = EventFile()
    for generation, topic in ((1, "older"), (2, "newer")):
        file.start(generation, queries={"out": {"sink": "KafkaSink", "topics": [topic]}})
    await push(database, run.id, file)
    async with database.reading() as session:
        graph = await job_graph.of_job(session, await jobs.get(session, run.job))
    assert (graph.generation, [node.name for node in graph.nodes if node.kind == "topic"]) == (2, ["newer"])


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
        assert actual.figures.queries["out"].records_out == 40 * 20
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
        assert trouble.failure.error == "a\ufffdb"


async def test_a_long_error_text_keeps_its_beginning_and_end(database: Database) -> None:
    async with database.transaction() as session:
        run = await run_row(session)
    file = EventFile()
    file.start(1)
    file.write_event(
        "restart", attempt=1, pause_s=0.1, error="user-code", what="begin " + "x" * 900_000 + " end", hint="h" * 900_000
    )
    await push(database, run.id, file)
    async with database.reading() as session:
        (trouble,) = (await job_exceptions.page(session, run.job)).rows
    what = trouble.failure.what
    assert (len(what) < 10_100, what[:6], what[-4:]) == (True, "begin ", " end")
    assert len(trouble.failure.hint) < 10_100


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
        assert (recovery.body.to_host, recovery.body.generation) == (other.name, 2)
        assert [phase.name for phase in recovery.body.phases] == [
            "detect",
            "decide",
            "start",
            "claim",
            "restore",
            "replay",
            "commit",
        ]
        assert recovery.ended_at is not None
        total = sum(phase.duration_ms for phase in recovery.body.phases)
        assert total == pytest.approx((recovery.ended_at - recovery.started_at).total_seconds() * 1000, abs=1)


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
