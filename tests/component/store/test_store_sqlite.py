"""Connections to SQLite close, also when a task is cancelled at that moment; and which commits wait for the disk."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiosqlite
import pytest
from sqlalchemy import text

from clonos.errors import DatabaseUnavailable, StateConflict
from clonos_api.store import events
from clonos_api.store.db import schema
from clonos_api.store.db.commit_hooks import wait_for_disk
from clonos_api.store.db.database import Database, Origin
from clonos_api.store.db.notifier import notify
from clonos_api.store.db.numbers import skip_numbers
from clonos_api.store.db.sqlite import Connection, Disk

pytestmark = pytest.mark.anyio


async def test_a_connection_that_is_stopped_while_it_closes_is_closed(tmp_path: Path) -> None:
    connection = await Connection(str(tmp_path / "store.db"))
    closing = asyncio.create_task(connection.close())
    await asyncio.sleep(0)
    stopped = connection.stop()
    assert stopped is not None
    done, _ = await asyncio.wait([closing], timeout=10)
    assert done, "close() waits for a thread that has exited"
    assert closing.exception() is None
    await stopped  # otherwise the thread responds after the end of this test's loop


@pytest.mark.parametrize("origin", [Origin.USER, Origin.AGENT])
async def test_repeatedly_cancelled_transactions_leave_no_task_and_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: Origin
) -> None:
    threads = set(threading.enumerate())
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/store.db")
    # The threads of aiosqlite log before and after each answer: this makes them slow, as on a busy machine.
    monkeypatch.setattr(aiosqlite.core.LOG, "debug", lambda *_: time.sleep(0.002))

    async def use() -> None:
        async with database.transaction(origin=origin) as session:
            for _ in range(100):
                await session.execute(text("SELECT 1"))

    before = asyncio.all_tasks()
    for number in range(60):
        using = asyncio.create_task(use())
        for _ in range(3 + number % 20):
            await asyncio.sleep(0)
        using.cancel()
        for _ in range(number % 4):
            await asyncio.sleep(0)
        using.cancel()
        done, _ = await asyncio.wait([using], timeout=10)
        assert done
    await database.close()
    left = asyncio.all_tasks() - before
    if left:
        _, left = await asyncio.wait(left, timeout=10)
    assert not left
    assert not set(threading.enumerate()) - threads


async def test_close_waits_for_the_session_of_a_cancelled_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set(threading.enumerate())
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/store.db")
    begun = asyncio.Event()

    async def use() -> None:
        async with database.transaction():
            begun.set()
            await asyncio.Event().wait()

    using = asyncio.create_task(use())
    await begun.wait()
    monkeypatch.setattr(aiosqlite.core.LOG, "debug", lambda *_: time.sleep(0.02))
    using.cancel()
    await asyncio.sleep(0)  # it rolls back
    using.cancel()
    await asyncio.wait([using], timeout=10)
    await database.close()
    assert not set(threading.enumerate()) - threads


async def test_closing_a_connection_rolls_its_transaction_back(tmp_path: Path) -> None:
    """Even if a statement with unread rows is still referenced, as after a cancelled read."""
    closed, other = [await Connection(str(tmp_path / "store.db"), isolation_level=None, timeout=0) for _ in range(2)]
    await closed.execute("PRAGMA journal_mode = WAL")
    await closed.execute("CREATE TABLE rows (number)")
    await closed.execute("BEGIN IMMEDIATE")
    await closed.execute("INSERT INTO rows VALUES (1), (2)")
    unread = await closed.execute("SELECT number FROM rows")
    assert await unread.fetchone() == (1,)
    await closed.close()
    await other.execute("BEGIN IMMEDIATE")
    assert await (await other.execute("SELECT count(*) FROM rows")).fetchone() == (0,), "it was rolled back"
    await other.close()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were written to the disk."""
    files: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda file: files.append(str(Path(f"/proc/self/fd/{file}").readlink())))
    return files


async def a_commit(database: Database, origin: Origin, *, waits: bool = False) -> None:
    async with database.transaction(origin=origin) as session:
        await session.execute(text("INSERT INTO t VALUES (1)"))
        if waits:
            wait_for_disk(session)


@pytest.fixture
async def own_database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/store.db")
    async with database.transaction() as session:
        await session.execute(text("CREATE TABLE t (x)"))
    yield database
    await database.close()


@pytest.mark.parametrize("origin", Origin)
@pytest.mark.parametrize("waits", [False, True])
async def test_commits_of_users_and_those_that_ask_for_it_wait_for_the_disk(
    own_database: Database, synced: list[str], tmp_path: Path, origin: Origin, waits: bool
) -> None:
    await a_commit(own_database, origin, waits=waits)
    assert synced == ([f"{tmp_path}/store.db-wal"] if waits or origin is Origin.USER else [])


async def test_other_commits_are_written_soon(
    own_database: Database, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clonos_api.store.db.database._FLUSH_S", 0.01)
    writing = asyncio.create_task(own_database.write_to_disk())
    for count in (1, 2):
        await a_commit(own_database, Origin.AGENT)
        async with asyncio.timeout(30):
            while len(synced) < count:
                await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert len(synced) == 2, "without a commit nothing is written"
    writing.cancel()


async def test_a_disk_with_a_fault_fails_the_commit(own_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_file: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fails)
    before = own_database.notifier.seq
    with pytest.raises(DatabaseUnavailable, match="does not accept data"):
        async with own_database.transaction() as session:
            notify(session, before + 1)
    assert own_database.notifier.seq == before + 1, "the commit may be there: readers look"


async def test_after_a_fault_of_the_disk_all_commits_are_written_again(
    own_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux reports a lost write once, and later writes as successful."""
    faults = [OSError(5, "Input/output error")]

    def fails_once(_file: int) -> None:
        if faults:
            raise faults.pop()

    log = tmp_path / "store.db-wal"
    monkeypatch.setattr(os, "fdatasync", fails_once)
    with pytest.raises(DatabaseUnavailable):
        await a_commit(own_database, Origin.USER)
    async with own_database.reading() as session:
        await session.execute(text("SELECT * FROM t"))
        with pytest.raises(DatabaseUnavailable, match="is in use"):
            await a_commit(own_database, Origin.USER)
    assert log.stat().st_size > 0
    await a_commit(own_database, Origin.USER)
    assert log.stat().st_size == 0, "a checkpoint has written all to the database"
    await a_commit(own_database, Origin.USER)
    assert log.stat().st_size > 0


async def test_one_write_to_the_disk_serves_all_commits_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store.db-wal").touch()
    disk, begun, go = Disk(tmp_path / "store.db"), threading.Event(), threading.Event()
    writes = 0

    def slow(_file: int) -> None:
        nonlocal writes
        writes += 1
        begun.set()
        go.wait(60)

    monkeypatch.setattr(os, "fdatasync", slow)
    disk.committed()
    first = asyncio.create_task(disk.flush())
    await asyncio.to_thread(begun.wait, 60)
    rest = []
    for _ in range(5):  # during the first write, which may lack them
        disk.committed()
        rest.append(asyncio.create_task(disk.flush()))
    await asyncio.sleep(0)
    assert not first.done()
    go.set()
    await asyncio.gather(first, *rest)
    assert writes == 2
    disk.close()


async def test_a_commit_that_waits_for_the_disk_does_not_hold_up_the_next_writer(
    own_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda _file: go.wait(60))
    waiting = asyncio.create_task(a_commit(own_database, Origin.USER))
    async with asyncio.timeout(30):
        for _ in range(3):
            await a_commit(own_database, Origin.AGENT)
    assert not waiting.done()
    go.set()
    await waiting


async def test_the_log_of_a_linked_database_is_written_to_the_disk(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "store.db").symlink_to(tmp_path / "volume" / "data.db")
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/store.db")
    async with database.transaction() as session:
        await session.execute(text("CREATE TABLE t (x)"))
    assert synced == [f"{tmp_path}/volume/data.db-wal"]
    await database.close()


async def test_numbers_of_tables_without_rows_are_skipped(tmp_path: Path) -> None:
    """Their first rows may be lost too."""
    url = f"sqlite+aiosqlite:///{tmp_path}/store.db"
    schema.upgrade(url)
    database = Database(url)
    async with database.transaction() as session:
        await (await session.connection()).run_sync(skip_numbers)
        await (await session.connection()).run_sync(skip_numbers)
        rows = (await session.execute(text("SELECT name, seq FROM sqlite_sequence"))).all()
    await database.close()
    assert {"events", "log_chunks", "audit"} <= {row.name for row in rows}
    assert len(rows) == len({row.name for row in rows})
    assert all(row.seq > 100_000 for row in rows)


async def test_skipped_numbers_are_not_given_out(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/store.db"
    schema.upgrade(url)
    database = Database(url)
    numbers = []
    for _ in range(2):
        async with database.transaction() as session:
            events.append(session, "x")
        async with database.transaction() as session:
            numbers.append((await events.bounds(session))[1])
            await (await session.connection()).run_sync(skip_numbers)
    await database.close()
    assert numbers[1] > numbers[0] + 100_000


async def test_a_prompt_connection_changes_threads_only_for_what_may_wait(tmp_path: Path) -> None:
    connection = await Connection(
        str(tmp_path / "store.db"), prompt=True, isolation_level=None, check_same_thread=False
    )
    threads: dict[str, bool] = {}  # statement → whether the event loop executed it
    here = threading.get_ident()
    await connection.set_trace_callback(lambda sql: threads.__setitem__(sql, threading.get_ident() == here))
    cursor = await connection.cursor()
    for statement in ("BEGIN IMMEDIATE", "CREATE TABLE t (x)", "SELECT * FROM t"):
        await cursor.execute(statement)
        await cursor.fetchall()
    await connection.commit()
    await cursor.execute("BEGIN")
    await connection.rollback()
    await connection.close()
    assert threads == {
        "BEGIN IMMEDIATE": False,
        "CREATE TABLE t (x)": True,
        "SELECT * FROM t": True,
        "COMMIT": False,
        "BEGIN": True,
        "ROLLBACK": True,
    }


@pytest.mark.parametrize("of_this_process", [True, False])
async def test_a_single_statement_waits_for_another_writer_and_reads_beside_it(
    own_database: Database, tmp_path: Path, of_this_process: bool
) -> None:
    insert, count = text("INSERT INTO t VALUES (:x) RETURNING x"), text("SELECT count(*) FROM t")
    assert await own_database.execute(insert, {"x": 1}, origin=Origin.AGENT) == [(1,)]
    async with AsyncExitStack() as stack:
        if of_this_process:
            await stack.enter_async_context(own_database.transaction())
        else:
            other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
            stack.callback(other.close)
            other.execute("BEGIN IMMEDIATE")
        writing = asyncio.create_task(own_database.execute(insert, {"x": 2}, origin=Origin.AGENT))
        assert await own_database.execute(count, origin=Origin.LEADER) == [(1,)]
        assert not writing.done()
    assert await writing == [(2,)]
    assert await own_database.execute(count, origin=Origin.LEADER) == [(2,)]


async def test_a_single_statement_that_fails_has_an_error_of_the_store(own_database: Database) -> None:
    async with own_database.transaction() as session:
        await session.execute(text("CREATE TABLE parent (id INTEGER PRIMARY KEY)"))
        await session.execute(text("CREATE TABLE child (parent INTEGER REFERENCES parent)"))
    with pytest.raises(StateConflict):
        await own_database.execute(text("INSERT INTO child VALUES (1)"), origin=Origin.AGENT)


async def test_a_prompt_connection_keeps_the_order_after_a_cancelled_wait(tmp_path: Path) -> None:
    """The cancelled task waited for the lock; its transaction begins later, and the rollback ends it."""
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    connection = await Connection(
        str(tmp_path / "store.db"), prompt=True, isolation_level=None, check_same_thread=False, timeout=60
    )
    order: list[str] = []
    await connection.set_trace_callback(order.append)
    cursor = await connection.cursor()
    waiting = asyncio.create_task(cursor.execute("BEGIN IMMEDIATE"))
    await asyncio.sleep(0)
    waiting.cancel()
    rolling_back = asyncio.create_task(connection.rollback())
    await asyncio.wait([waiting])
    assert not rolling_back.done()
    other.execute("ROLLBACK")
    await asyncio.wait_for(rolling_back, 60)
    assert order == ["BEGIN IMMEDIATE", "ROLLBACK"]
    other.close()
    await connection.close()


async def test_short_statements_let_other_tasks_run(tmp_path: Path) -> None:
    connection = await Connection(str(tmp_path / "store.db"), prompt=True, check_same_thread=False)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    cursor = await connection.cursor()
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        await cursor.execute("SELECT 1")
        await cursor.fetchall()
    assert turns >= 5
    counting.cancel()
    await connection.close()
