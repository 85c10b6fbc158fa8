"""Connections to SQLite close, also when a task is cancelled at that moment."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import aiosqlite
import pytest
from sqlalchemy import text

from clonos_api.store.db.database import Database
from clonos_api.store.db.sqlite import Connection

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


async def test_repeatedly_cancelled_transactions_leave_no_task_and_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set(threading.enumerate())
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/store.db")
    # The threads of aiosqlite log before and after each answer: this makes them slow, as on a busy machine.
    monkeypatch.setattr(aiosqlite.core.LOG, "debug", lambda *_: time.sleep(0.002))

    async def use() -> None:
        async with database.transaction() as session:
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
