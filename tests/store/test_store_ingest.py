"""What drivers tell is taken in once, however it is pushed."""

from __future__ import annotations

import asyncio
import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from clonos.errors import NotFound, SpecError
from clonos.resources.jobs import OperatorMetrics
from clonos_api.store import (
    counters,
    epochs,
    events,
    exceptions,
    generations,
    jobs,
    logs,
    progress,
    recoveries,
    runs,
)
from clonos_api.store.clock import now
from clonos_api.store.database import Database
from clonos_api.store.tables import CounterRow, EpochRow, GenerationRow, JobRow, RecoveryRow, RunRow
from stored import EventFile, a_job, a_run, an_agent

pytestmark = pytest.mark.anyio


async def a_started_run(database: Database) -> RunRow:
    async with database.transaction() as session:
        return await a_run(session, agent=await an_agent(session, "the-host"))


async def push(database: Database, run: str, file: EventFile, first: int = 0, last: int | None = None) -> int:
    async with database.transaction() as session:
        return await epochs.ingest(session, run, file.offset(first), file.lines[first:last])


async def everything(database: Database, job: str) -> list[Any]:
    """All that ingestion wrote about a job."""
    async with database.reading() as session:
        told: list[Any] = [await counters.of_job(session, job)]
        found = await jobs.get(session, job)
        told.append((found.generation, found.restarts, found.observed_version, found.metrics))
        for table in (GenerationRow, EpochRow, RecoveryRow):
            rows = await session.scalars(select(table).where(table.job == job).order_by(*table.__table__.primary_key))
            names = [column.key for column in table.__table__.columns if column.key not in ("id", "job", "run")]
            told.append([[getattr(row, name) for name in names] for row in rows])
        told.append([one.failure for one in (await exceptions.page(session, job)).rows])
        return told


def a_life() -> EventFile:
    """Two claims and a crash, two queries, every kind of event."""
    file = EventFile()
    file.tell("lint", code="CL001")
    file.start(1)
    for number in range(6):
        file.epoch(number)
    file.epoch(0, query="other", read=1, records=1)
    file.tell("lag", query="out", topics={"in": 7}, partitions={"in": {"0": 5, "1": 2}})
    file.tell("open-transactions", 0, topics={"words": file.at})
    file.restart(2)
    file.tell("open-transactions", 0, topics={"letters": file.at})
    file.tell("open-transactions", 0, generation=1, topics={"old": file.at})
    judge = {"recorded": 0, "replayed": 5, "bytes": 0}
    file.epoch(6, replay=True, skipped_lanes=1, published_lanes=3, records=8, replayed=5, operators={"judge": judge})
    file.tell("truncated", query="out", partitions=2)
    file.start(3)  # the process was killed
    file.epoch(6, replay=True, records=8, skipped_lanes=3, published_lanes=3)  # it had ended
    judge = {"recorded": 3, "replayed": 1, "bytes": 240}
    file.epoch(7, operators={"judge": judge}, recorded_bytes=240, published_lanes=2)
    file.tell("state", state="STOPPING")
    file.tell("state", state="STOPPED")
    file.tell("stopped")
    return file


async def test_a_life_is_told(database: Database) -> None:
    run = await a_started_run(database)
    file = a_life()
    assert await push(database, run.id, file) == file.offset(len(file.lines))
    async with database.reading() as session:
        job = await jobs.get(session, run.job)
        assert (job.generation, job.restarts, job.observed_version, job.token) == (3, 2, 1, 1)
        told = (await generations.page(session, job.id)).rows
        assert [(one.generation, one.cause, one.attempt, one.epochs, one.records) for one in told] == [
            (3, "crash", 2, 1, 20),
            (2, "restart", 1, 1, 8),
            (1, "start", 1, 7, 121),
        ]
        assert all(one.ended_at is not None for one in told)
        sums = await counters.of_job(session, job.id)
        assert sums["epochs"] == 9
        assert sums["records_in"] == 6 * 10 + 1 + 10 + 10, "what a replay reads again is no new input"
        assert sums["records_out"] == 6 * 20 + 1 + 8 + 20
        assert (sums["epochs_failed"], sums["epochs_replayed"], sums["recoveries"]) == (1, 2, 2)
        assert sums["truncations"] == 1
        one = await progress.one(session, job.id, 6)
        assert (one.trigger, one.generation, one.records_out, one.retained) == ("REPLAY", 3, 8, True)
        (trouble,) = (await exceptions.page(session, job.id)).rows
        assert (trouble.generation, trouble.failure["domain"], trouble.failure["retry"]) == (1, "run", True)
        metrics = await progress.metrics(session, job)
        assert metrics.queries["out"].epochs == 8
        assert metrics.queries["out"].lag == {"in": 7}
        assert metrics.queries["out"].partition_lag == {"in": {"0": 5, "1": 2}}
        assert metrics.queries["out"].operators == {"judge": OperatorMetrics(recorded=3, replayed=6, bytes=240)}
        assert (metrics.queries["out"].published_lanes, metrics.queries["out"].recorded_bytes) == (5, 240)
        assert metrics.open_transactions == {}, "a claim ends what its predecessors had open, and so does the end"
        assert one.published_lanes == 3, "and not twice as many"
        assert (sums["epochs_timed"], sums["epochs_ms"]) == (10, 500)
        assert metrics.queries["out"].epoch == 7
        assert (metrics.restarts, metrics.queries["out"].records_in_per_s) == (2, 0.0)
        found = await progress.checkpoints(session, job.id, limit=3)
        assert (found.counts.completed, found.counts.failed, found.counts.restored) == (9, 1, 2)
        assert [one.epoch for one in found.history] == [7, 6, 0]
        assert found.latest.restored is not None
        assert found.latest.restored.epoch == 6
        assert found.summary.duration_ms["p50"] == 50
        assert (await progress.causal_log(session, job)).truncations == 1
        types = [one.type for one in await events.after(session, 0, job=job.id)]
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
        assert [one["name"] for one in restart.body["phases"]] == ["start", "claim", "restore", "replay", "commit"]
        # From the last epoch: other query, lag, state, restart, state, claimed, two states, epoch; a tenth each.
        assert restart.body["gap_ms"] == pytest.approx(800, abs=1)
        assert restart.body["skipped_lanes"] == 1
        assert restart.body["replayed_records"] == 10
        total = sum(one["duration_ms"] for one in restart.body["phases"])
        assert restart.ended_at is not None
        assert total == pytest.approx((restart.ended_at - restart.started_at).total_seconds() * 1000, abs=1)


@pytest.mark.parametrize("seed", range(3))
async def test_pushes_that_repeat_overlap_and_split_tell_the_same(database: Database, seed: int) -> None:
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
    one, many = await a_started_run(database), await a_started_run(database)
    await push(database, one.id, file)
    await asyncio.gather(*(push(database, many.id, file) for _ in range(8)))
    assert await everything(database, many.job) == await everything(database, one.job)


async def test_two_runs_of_one_job_tell_at_once(database: Database) -> None:
    async with database.transaction() as session:
        job = await a_job(session)
        first, second = await a_run(session, job), await a_run(session, job)
    old, new = EventFile(), EventFile()
    old.start(1)
    new.at += 100
    new.start(2)
    for number in range(20):
        old.epoch(number)
        new.epoch(20 + number)

    async def tell(run: RunRow, file: EventFile) -> None:
        for number in range(0, len(file.lines), 3):
            await push(database, run.id, file, number, number + 3)

    await asyncio.gather(tell(first, old), tell(second, new))
    async with database.reading() as session:
        found = await jobs.get(session, job.id)
        assert found.generation == 2
        assert found.metrics is not None
        assert found.metrics["queries"]["out"]["records_out"] == 40 * 20
        told = (await generations.page(session, job.id)).rows
        assert [(one.generation, one.epochs, one.ended_at is None) for one in told] == [(2, 20, True), (1, 20, False)]


async def test_a_gap_is_asked_for_or_given_up(database: Database) -> None:
    run = await a_started_run(database)
    file = a_life()
    assert await push(database, run.id, file, 0, 3) == file.offset(3)
    assert await push(database, run.id, file, 5) == file.offset(3), "what is missing comes first"
    assert await push(database, run.id, file, 0, 0) == file.offset(3), "a push without lines asks"
    async with database.transaction() as session:
        end = await epochs.ingest(session, run.id, file.offset(5), file.lines[5:6], gap=True)
        assert end == file.offset(6)
        assert await epochs.ingest(session, run.id, end + 100, [], gap=True) == end + 100


async def test_lines_of_another_file(database: Database) -> None:
    run = await a_started_run(database)
    file = a_life()
    await push(database, run.id, file, 0, 3)
    with pytest.raises(SpecError, match="middle of a line"):
        async with database.transaction() as session:
            await epochs.ingest(session, run.id, file.offset(2), ["x" * 1000])
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


async def test_what_a_job_wrote_into_its_event_file_stops_nothing(database: Database) -> None:
    run = await a_started_run(database)
    file = EventFile()
    file.start(1)
    file.lines += HOSTILE
    base = {"event": "epoch", "at": 5, "generation": 1, "query": "out", "epoch": 1, "duration_ms": 1, "records": 1}
    for wrong in (
        {"epoch": 2**63},
        {"epoch": -1},
        {"epoch": None},
        {"query": "q" * 101},
        {"query": ""},
        {"query": 7},
        {"records": 2**60},
        {"records": "many"},
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
        assert sums["unreadable_events"] == bad - 4 - 1, "all but one, which is told"
        (trouble,) = (await exceptions.page(session, run.job)).rows
        assert trouble.failure["error"] == "a\ufffdb"


async def test_a_job_that_moves_to_another_host(database: Database) -> None:
    async with database.transaction() as session:
        job = await a_job(session)
        lost = await a_run(session, job)
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
            from_agent="a",
            at=failed,
            detected_at=failed + timedelta(seconds=1),
        )
        other = await an_agent(session)
        run = await a_run(session, job, other)
        await recoveries.placed(session, job.id, other.name)
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
        assert (recovery.body["to_agent"], recovery.body["generation"]) == (other.name, 2)
        assert [one["name"] for one in recovery.body["phases"]] == [
            "detect",
            "decide",
            "start",
            "claim",
            "restore",
            "replay",
            "commit",
        ]
        assert recovery.ended_at is not None
        total = sum(one["duration_ms"] for one in recovery.body["phases"])
        assert total == pytest.approx((recovery.ended_at - recovery.started_at).total_seconds() * 1000, abs=1)


async def test_a_second_failure_before_the_first_epoch_ends_the_recovery_before(database: Database) -> None:
    run = await a_started_run(database)
    file = EventFile()
    file.start(1)
    file.epoch(0)
    file.start(2)  # killed
    file.start(3)  # killed again, before it got to an epoch
    file.restart(4)
    file.epoch(1)
    await push(database, run.id, file)
    async with database.reading() as session:
        found = list(reversed((await recoveries.page(session, run.job)).rows))
        assert [one.body["outcome"] for one in found] == ["superseded", "superseded", "finished"]
        assert [(one.body["failed_generation"], one.body["generation"]) for one in found] == [(1, 2), (2, 3), (3, 4)]
        assert all(one.ended_at is not None for one in found)
        told = [
            one.data["outcome"] for one in await events.after(session, 0, types=["job.recovery.ended"], job=run.job)
        ]
        assert told == ["superseded", "superseded", "finished"]


async def test_a_clean_stop_and_start_is_no_recovery(database: Database) -> None:
    async with database.transaction() as session:
        job = await a_job(session)
        first, second = await a_run(session, job), await a_run(session, job)
    for generation, run in ((1, first), (2, second)):
        file = EventFile()
        file.start(generation)
        file.epoch(generation)
        file.tell("state", state="STOPPED")
        file.tell("stopped")
        await push(database, run.id, file)
    async with database.reading() as session:
        assert [one.cause for one in (await generations.page(session, job.id)).rows] == ["start", "start"]
        assert (await recoveries.page(session, job.id)).rows == []
        assert (await jobs.get(session, job.id)).restarts == 0


async def test_readers_wait_for_a_transaction(database: Database) -> None:
    run = await a_started_run(database)
    file = EventFile()

    async def known() -> dict[str, datetime]:
        await push(database, run.id, file)
        async with database.reading() as session:
            return (await progress.metrics(session, await jobs.get(session, run.job))).open_transactions

    file.start(1)
    file.tell("open-transactions", topics={"words": file.at})
    file.tell("retention", query="out", topics={"in": 90})
    file.start(2, delivery={"out": "at-least-once"}, sharing_depth="0")
    assert await known() == {}
    async with database.reading() as session:
        metrics = await progress.metrics(session, await jobs.get(session, run.job))
    assert metrics.queries["out"].retention == {}, "whoever reads now tells anew"
    assert (metrics.delivery, metrics.sharing_depth) == ({"out": "at-least-once"}, "0")
    file.tell("open-transactions", topics={"words": file.at})
    file.tell("open-transactions", generation=1, topics={"old": file.at})
    assert list(await known()) == ["words"], "of the newest claim"
    file.tell("stopped")
    assert await known() == {}


async def test_an_epoch_counts_without_operators_that_cannot_be_read(database: Database) -> None:
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


async def test_a_job_of_an_earlier_version_goes_on_to_be_counted(database: Database) -> None:
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


async def test_rates_are_those_of_now(database: Database) -> None:
    run = await a_started_run(database)
    async with database.reading() as session:
        moment = (await now(session)).timestamp()
    file = EventFile()
    file.at = moment - 8
    file.start(1)
    for number in range(5):
        file.epoch(number, after_s=1, offsets={"in": {"0": number}})
    await push(database, run.id, file)
    async with database.reading() as session:
        job = await jobs.get(session, run.job)
        out = (await progress.metrics(session, job)).queries["out"]
        assert (out.records_in_per_s, out.records_out_per_s, out.epoch_ms_p99) == (5.0, 10.0, 50.0)
        (at,) = await progress.offsets(session, job)
        assert (at.epoch, at.offsets) == (4, {"in": {"0": 4}})


async def test_logs_by_byte_offset(database: Database) -> None:
    run = await a_started_run(database)
    text = "".join(f"line {number} é\n" for number in range(50)) + "half a l"
    data = text.encode()

    async def send(offset: int, piece: bytes, **more: bool) -> int:
        async with database.transaction() as session:
            return await logs.push(session, run.id, offset, piece.decode(), **more)

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
            offset = await logs.push(session, run.id, offset, f"{number:>99}\n")
    async with database.reading() as session:
        kept = (await logs.read(session, run.job, "0:0", 1000)).lines
        assert 80 <= len(kept) <= 100
        assert kept[-1].strip() == "399"
        assert (await logs.tail(session, run.job, 1000)).lines == kept


async def test_ingestion_and_other_writers_do_not_fence_each_other(database: Database) -> None:
    run = await a_started_run(database)
    file = EventFile()
    file.start(1)
    for number in range(40):
        file.epoch(number)

    async def tell() -> None:
        for number in range(len(file.lines)):
            await push(database, run.id, file, number, number + 1)

    async def change() -> None:
        for _ in range(20):
            async with database.transaction() as session:
                job = await jobs.get(session, run.job)
                await jobs.change(session, job, restart_nonce=job.restart_nonce + 1)

    await asyncio.gather(tell(), change())
    async with database.reading() as session:
        job = await jobs.get(session, run.job)
        assert (job.restart_nonce, job.generation) == (20, 1)
        assert (
            await session.scalars(select(CounterRow.value).where(CounterRow.job == job.id, CounterRow.name == "epochs"))
        ).one() == 40
