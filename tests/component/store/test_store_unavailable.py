"""Outages of the database: no acknowledged write is lost, and every wait has an end."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from clonos.errors import DatabaseUnavailable, SpecError
from clonos_api.store import counters, events, hosts, jobs
from clonos_api.store.db.clock import now
from clonos_api.store.db.database import Database, Origin, _translated
from clonos_api.store.tables import JobRow
from support.busy import within
from support.postgres import PostgresServer
from support.stored import EventFile, host_row, ingest, job_row, run_row, unique

pytestmark = pytest.mark.anyio
# SQLite is a file: it has no server that can be unavailable.
ON_POSTGRESQL = pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True, scope="module")


@pytest.fixture
def restarted(postgres: PostgresServer) -> PostgresServer:
    """The server; tests start it again if they stop it."""
    return postgres


async def test_a_waiting_writer_can_be_cancelled(database: Database) -> None:
    """Regression: the cancellation was lost, and a leader did not exit."""

    async def for_ever() -> None:
        while True:
            async with database.transaction():
                pass
            await asyncio.sleep(0)

    async with database.transaction():
        waiting = [asyncio.create_task(for_ever()) for _ in range(3)]
        for _ in range(10):
            await asyncio.sleep(0)  # all wait
    await asyncio.sleep(0)  # the first of them may write now, and has not resumed yet
    for task in waiting:
        task.cancel()
    _, left = await asyncio.wait(waiting, timeout=5)
    for task in left:
        task.cancel()
    assert not left


@ON_POSTGRESQL
async def test_a_restart_under_load_loses_nothing(database: Database, restarted: PostgresServer) -> None:
    """Eight writers and an ingestion; the server is killed twice in the middle of it."""
    kind = unique("e.")
    async with database.transaction() as session:
        job = await job_row(session)
        run = await run_row(session)
    file = EventFile()
    file.start(1)
    for number in range(400):
        file.epoch(number)
    remaining: set[tuple[int, int]] = set()
    doubt: set[tuple[int, int]] = set()
    away = 0
    done = asyncio.Event()

    async def write(writer: int) -> None:
        nonlocal away
        count = 0
        while not done.is_set():
            count += 1
            try:
                async with database.transaction() as session:
                    events.append(session, kind, data={"writer": writer, "count": count})
                    fresh = await session.get(JobRow, job.id, with_for_update=True)
                    assert fresh is not None
                    await jobs.change(session, fresh, restart_nonce=fresh.restart_nonce + 1)
            except DatabaseUnavailable:
                away += 1
                doubt.add((writer, count))
            else:
                remaining.add((writer, count))

    async def push_lines() -> None:
        """Repeats like an agent: from the offset in the response, or from an earlier line."""
        have, line = 0, 0
        while line < len(file.lines):
            try:
                async with database.transaction() as session:
                    have = await ingest(session, run.id, file.offset(line), file.lines[line : line + 3])
            except DatabaseUnavailable:
                line = max(0, line - 7)
                continue
            while line < len(file.lines) and file.offset(line) < have:
                line += 1

    async def crash() -> None:
        for _ in range(2):
            before = len(remaining)
            while len(remaining) < before + 60:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(restarted.stop, kill=True)
            await asyncio.to_thread(restarted.start)
        before = len(remaining)
        while len(remaining) < before + 60:
            await asyncio.sleep(0.01)
        done.set()

    await asyncio.gather(*(write(number) for number in range(8)), push_lines(), crash())
    async with database.reading() as session:
        rows = await events.after(session, 0, types=[kind], limit=1_000_000)
        actual = {(row.data["writer"], row.data["count"]) for row in rows}
        nonce = (await jobs.get(session, job.id)).restart_nonce
        sums = await counters.of_job(session, run.job)
    assert away, "the load did not notice the restarts"
    assert remaining <= actual, "a committed event is lost"
    assert actual <= remaining | doubt
    assert len(rows) == len(actual) == nonce, "an event without its change, or a change without its event"
    assert sums["epochs"] == 400
    assert sums["records_out"] == 400 * 20
    assert "unreadable_events" not in sums


@ON_POSTGRESQL
async def test_a_visible_event_survives_a_crash(database: Database, restarted: PostgresServer) -> None:
    """Also one of those that do not wait for the disk: a reader would see it twice, under two numbers."""
    kind = unique("e.")
    for number in range(3):
        async with database.transaction(origin=Origin.AGENT) as session:
            events.append(session, kind, data={"number": number})
        async with database.reading() as session:
            seen = [row.seq for row in await events.after(session, 0, types=[kind])]
        await asyncio.to_thread(restarted.crash)
        await asyncio.to_thread(restarted.start)
        async with database.reading() as session:
            assert [row.seq for row in await events.after(session, 0, types=[kind])] == seen
        assert len(seen) == number + 1


@ON_POSTGRESQL
async def test_an_acknowledged_final_push_survives_a_crash(database: Database, restarted: PostgresServer) -> None:
    """A push may be acknowledged before it is on disk; the final push of a run waits for the disk."""
    async with database.transaction() as session:
        run = await run_row(session)
    file = EventFile()
    file.start(1)
    end = 0
    for number in range(3):
        start, lines = end, file.lines[:]
        file.lines.clear()
        file.epoch(number)
        async with database.transaction(origin=Origin.AGENT) as session:
            end = await ingest(session, run.id, start, [*lines, *file.lines])
        file.lines.clear()
        async with database.transaction() as session:
            assert await ingest(session, run.id, end, []) == end
        await asyncio.to_thread(restarted.crash)
        await asyncio.to_thread(restarted.start)
        async with database.reading() as session:
            assert (await counters.of_job(session, run.job))["epochs"] == number + 1


@ON_POSTGRESQL
async def test_waiting_for_an_unavailable_database_times_out(url: str, restarted: PostgresServer) -> None:
    database = Database(url, wait_s=1.0)
    async with database.reading() as session:
        await now(session)
    restarted.stop()
    try:
        with within(10.0), pytest.raises(DatabaseUnavailable) as actual:
            async with database.transaction() as session:
                await now(session)
        assert actual.value.retry
        with pytest.raises(DatabaseUnavailable):
            async with database.reading() as session:
                await now(session)
    finally:
        restarted.start()
    async with database.reading() as session:
        assert await now(session)
    await database.close()


@ON_POSTGRESQL
async def test_a_transaction_waits_for_a_database_that_restarts(url: str, restarted: PostgresServer) -> None:
    database = Database(url, wait_s=120.0)
    restarted.stop(kill=True)
    waiting = asyncio.create_task(_now(database))
    await asyncio.to_thread(restarted.start)
    await waiting
    await database.close()


async def _now(database: Database) -> None:
    async with database.reading() as session:
        await now(session)


@ON_POSTGRESQL
async def test_a_lost_connection_rolls_the_transaction_back(database: Database, restarted: PostgresServer) -> None:
    name = unique("job-")

    async def cut() -> None:
        async with database.transaction() as session:
            await job_row(session, name)
            await asyncio.to_thread(restarted.stop, kill=True)
            try:
                await jobs.get(session, name)
            finally:
                await asyncio.to_thread(restarted.start)

    with pytest.raises(DatabaseUnavailable):
        await cut()
    async with database.reading() as session:
        assert (await jobs.page(session, name=name)).rows == []


@ON_POSTGRESQL
async def test_a_stopped_replica_does_not_block_lease_renewals(url: str) -> None:
    """In the middle of a transaction that holds the agent's row."""
    database = Database(url)
    async with database.transaction() as session:
        agent = await host_row(session, lease_s=4.0)

    async def stopped() -> None:
        async with database.transaction() as stopped:
            await hosts.heartbeat(stopped, agent.id, agent.instance, hosts.Liveness(4.0))
            async with database.transaction() as session:
                await hosts.heartbeat(session, agent.id, agent.instance, hosts.Liveness(4.0))

    # The time counts from the previous heartbeat, up to a second ago.
    with within(12.0), pytest.raises(DatabaseUnavailable):
        await stopped()
    await database.close()


async def test_a_transaction_times_out_if_all_connections_are_in_use(url: str) -> None:
    database = Database(url, pool_size=1, wait_s=0.3)
    async with database.transaction():
        with pytest.raises(DatabaseUnavailable):
            async with database.transaction():
                pass
        if database.dialect == "postgresql":
            async with database.transaction(origin=Origin.LEASE) as session:
                await now(session)  # the lease is renewed even now
    await database.close()


async def test_waiting_for_a_lock_times_out(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clonos_api.store.db.database._LOCK_MS", 200)
    first, second = Database(url, wait_s=0.5), Database(url, wait_s=0.5)
    async with first.transaction() as session:
        job = await job_row(session)
    async with first.transaction() as session:
        await jobs.change(session, job, restart_nonce=5)
        with pytest.raises(DatabaseUnavailable):
            async with second.transaction() as other:
                await jobs.change(other, await jobs.get(other, job.id), restart_nonce=6)
    for database in (first, second):
        await database.close()


@pytest.mark.parametrize("wrong", ["mysql+aiomysql://x/y", "sqlite+aiosqlite://", "sqlite:///x.db"])
def test_other_databases_are_refused(wrong: str) -> None:
    with pytest.raises(SpecError):
        Database(wrong)


async def test_a_file_that_cannot_be_opened_is_an_unavailable_database(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/missing/x.db", wait_s=0.3)
    with pytest.raises(DatabaseUnavailable):
        async with database.reading() as session:
            await now(session)
    await database.close()
    # A thread of aiosqlite that could not connect reports it to the loop, which must still run.
    while any("_connection_worker_thread" in thread.name for thread in threading.enumerate()):
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True, scope="module")
async def test_a_full_disk_is_noticed_until_a_write_succeeds(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with database.transaction() as session:
        pages = (await session.execute(text("PRAGMA page_count"))).scalar_one()
    assert database.disk_trouble() == ""

    async def fill() -> None:
        async with database.transaction() as session:
            await session.execute(text(f"PRAGMA max_page_count = {pages}"))
            for _ in range(1_000):
                events.append(session, unique("e."), data={"text": "x" * 1_000})
            await session.flush()

    with pytest.raises(DatabaseUnavailable, match="disk of the database is full"):
        await fill()
    assert database.disk_trouble() == "The disk of the database is full."
    with monkeypatch.context() as later:  # this replica has written nothing since: it gets no requests
        ahead = time.monotonic() + 11
        later.setattr(time, "monotonic", lambda: ahead)
        assert database.disk_trouble() == ""
    assert database.disk_trouble() == "The disk of the database is full."
    async with database.transaction() as session:
        await session.execute(text("PRAGMA max_page_count = 1000000"))
        events.append(session, unique("e."))
    assert database.disk_trouble() == ""
    monkeypatch.setattr(Database, "free_bytes", lambda self: 1_000)
    assert database.disk_trouble() == "The database's disk has 1000 free bytes."


def test_a_full_disk_of_postgresql_is_a_failure_that_is_retried() -> None:
    """Its state had no translation, so that requests got 500."""
    full = OperationalError("INSERT", {}, psycopg.errors.DiskFull("could not extend file: No space left on device"))
    with pytest.raises(DatabaseUnavailable, match="disk of the database is full"), _translated():
        raise full
