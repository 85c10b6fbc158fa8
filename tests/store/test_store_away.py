"""The database goes away and comes back: nothing that was said to be kept is lost, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from clonos.errors import SpecError, StoreAway
from clonos.testing.postgres import PostgresServer
from clonos_api.store import agents, counters, epochs, events, jobs
from clonos_api.store.clock import now
from clonos_api.store.database import Database
from clonos_api.store.tables import JobRow
from stored import EventFile, a_job, a_run, an_agent, unique

pytestmark = pytest.mark.anyio
# SQLite is a file: it does not go away.
ON_POSTGRESQL = pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True, scope="module")


@pytest.fixture
def restarted(postgres: PostgresServer) -> PostgresServer:
    """The server; tests start it again if they stop it."""
    return postgres


async def test_who_is_cancelled_while_its_turn_comes_is_cancelled(database: Database) -> None:
    """It was forgotten, and a leader that was to end went on for ever."""

    async def for_ever() -> None:
        while True:
            async with database.transaction():
                pass
            await asyncio.sleep(0)

    async with database.transaction():
        waiting = [asyncio.create_task(for_ever()) for _ in range(3)]
        for _ in range(10):
            await asyncio.sleep(0)  # all wait
    await asyncio.sleep(0)  # the first of them has its turn now, and does not know it yet
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
        job = await a_job(session)
        run = await a_run(session)
    file = EventFile()
    file.start(1)
    for number in range(400):
        file.epoch(number)
    kept: set[tuple[int, int]] = set()
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
            except StoreAway:
                away += 1
                doubt.add((writer, count))
            else:
                kept.add((writer, count))

    async def tell() -> None:
        """As an agent does: again, from where the answer says, or from where it was."""
        have, line = 0, 0
        while line < len(file.lines):
            try:
                async with database.transaction() as session:
                    have = await epochs.ingest(session, run.id, file.offset(line), file.lines[line : line + 3])
            except StoreAway:
                line = max(0, line - 7)
                continue
            while line < len(file.lines) and file.offset(line) < have:
                line += 1

    async def crash() -> None:
        for _ in range(2):
            before = len(kept)
            while len(kept) < before + 60:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(restarted.stop, kill=True)
            await asyncio.to_thread(restarted.start)
        before = len(kept)
        while len(kept) < before + 60:
            await asyncio.sleep(0.01)
        done.set()

    await asyncio.gather(*(write(number) for number in range(8)), tell(), crash())
    async with database.reading() as session:
        rows = await events.after(session, 0, types=[kind], limit=1_000_000)
        found = {(row.data["writer"], row.data["count"]) for row in rows}
        nonce = (await jobs.get(session, job.id)).restart_nonce
        sums = await counters.of_job(session, run.job)
    assert away, "the load did not notice the restarts"
    assert kept <= found, "what was committed is gone"
    assert found <= kept | doubt
    assert len(rows) == len(found) == nonce, "an event without its change, or a change without its event"
    assert sums["epochs"] == 400
    assert sums["records_out"] == 400 * 20
    assert "unreadable_events" not in sums


@ON_POSTGRESQL
async def test_an_event_that_was_seen_outlives_a_crash(database: Database, restarted: PostgresServer) -> None:
    """Also one of those that do not wait for the disk: a reader would see it twice, under two numbers."""
    kind = unique("e.")
    for number in range(3):
        async with database.transaction(told=True) as session:
            events.append(session, kind, data={"number": number})
        async with database.reading() as session:
            seen = [row.seq for row in await events.after(session, 0, types=[kind])]
        await asyncio.to_thread(restarted.crash)
        await asyncio.to_thread(restarted.start)
        async with database.reading() as session:
            assert [row.seq for row in await events.after(session, 0, types=[kind])] == seen
        assert len(seen) == number + 1


@ON_POSTGRESQL
async def test_what_is_asked_for_last_outlives_a_crash(database: Database, restarted: PostgresServer) -> None:
    """A push is not waited for; to ask for its end, as agents do before they forget a run, has it written."""
    async with database.transaction() as session:
        run = await a_run(session)
    file = EventFile()
    file.start(1)
    end = 0
    for number in range(3):
        start, lines = end, file.lines[:]
        file.lines.clear()
        file.epoch(number)
        async with database.transaction(told=True) as session:
            end = await epochs.ingest(session, run.id, start, [*lines, *file.lines])
        file.lines.clear()
        async with database.transaction() as session:
            assert await epochs.ingest(session, run.id, end, []) == end
        await asyncio.to_thread(restarted.crash)
        await asyncio.to_thread(restarted.start)
        async with database.reading() as session:
            assert (await counters.of_job(session, run.job))["epochs"] == number + 1


@ON_POSTGRESQL
async def test_waiting_for_a_database_that_is_away_is_bounded(url: str, restarted: PostgresServer) -> None:
    database = Database(url, wait_s=1.0)
    async with database.reading() as session:
        await now(session)
    restarted.stop()
    try:
        began = time.monotonic()
        with pytest.raises(StoreAway) as told:
            async with database.transaction() as session:
                await now(session)
        assert time.monotonic() - began < 10
        assert told.value.retry
        with pytest.raises(StoreAway):
            async with database.reading() as session:
                await now(session)
    finally:
        restarted.start()
    async with database.reading() as session:
        assert await now(session)
    await database.close()


@ON_POSTGRESQL
async def test_a_transaction_waits_for_a_database_that_is_back_soon(url: str, restarted: PostgresServer) -> None:
    database = Database(url, wait_s=30.0)
    restarted.stop(kill=True)
    waiting = asyncio.create_task(_now(database))
    await asyncio.to_thread(restarted.start)
    await waiting
    await database.close()


async def _now(database: Database) -> None:
    async with database.reading() as session:
        await now(session)


@ON_POSTGRESQL
async def test_a_connection_that_is_cut_in_the_middle(database: Database, restarted: PostgresServer) -> None:
    name = unique("job-")

    async def cut() -> None:
        async with database.transaction() as session:
            await a_job(session, name)
            await asyncio.to_thread(restarted.stop, kill=True)
            try:
                await jobs.get(session, name)
            finally:
                await asyncio.to_thread(restarted.start)

    with pytest.raises(StoreAway):
        await cut()
    async with database.reading() as session:
        assert (await jobs.page(session, name=name)).rows == []


@ON_POSTGRESQL
async def test_a_replica_that_is_stopped_keeps_no_agent_from_renewing_its_lease(database: Database) -> None:
    """In the middle of a transaction that holds the agent's row."""
    async with database.transaction() as session:
        agent = await an_agent(session, lease_s=4.0)
    begun = time.monotonic()

    async def stopped() -> None:
        async with database.transaction() as stopped:
            await agents.heartbeat(stopped, agent.id, agent.instance, agents.Lives(4.0))
            async with database.transaction() as session:
                await agents.heartbeat(session, agent.id, agent.instance, agents.Lives(4.0))

    with pytest.raises(StoreAway):
        await stopped()
    # Since the heartbeat before, which may have been a second ago.
    assert time.monotonic() - begun < 3.0


async def test_all_connections_in_use(url: str) -> None:
    database = Database(url, pool_size=1, wait_s=0.3)
    async with database.transaction():
        with pytest.raises(StoreAway):
            async with database.transaction():
                pass
        if database.dialect == "postgresql":
            async with database.transaction(reserved=True) as session:
                await now(session)  # the lease is renewed even now
    await database.close()


async def test_a_lock_is_not_waited_for_for_ever(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clonos_api.store.database._LOCK_MS", 200)
    one, two = Database(url, wait_s=0.5), Database(url, wait_s=0.5)
    async with one.transaction() as session:
        job = await a_job(session)
    async with one.transaction() as session:
        await jobs.change(session, job, restart_nonce=5)
        with pytest.raises(StoreAway):
            async with two.transaction() as other:
                await jobs.change(other, await jobs.get(other, job.id), restart_nonce=6)
    for database in (one, two):
        await database.close()


@pytest.mark.parametrize("wrong", ["mysql+aiomysql://x/y", "sqlite+aiosqlite://", "sqlite:///x.db"])
def test_other_databases_are_refused(wrong: str) -> None:
    with pytest.raises(SpecError):
        Database(wrong)


async def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/missing/x.db", wait_s=0.3)
    with pytest.raises(StoreAway):
        async with database.reading() as session:
            await now(session)
    await database.close()
    # A thread of aiosqlite that could not connect says so to the loop, which must be there still.
    while any("_connection_worker_thread" in thread.name for thread in threading.enumerate()):
        await asyncio.sleep(0.01)
