"""SQLite's connections end, whoever is cancelled while they do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import text

from clonos_api.store.database import Database
from clonos_api.store.sqlite import Connection

pytestmark = pytest.mark.anyio


async def test_one_that_is_ended_while_it_is_being_closed_is_closed(tmp_path: Path) -> None:
    connection = await Connection(str(tmp_path / "one.db"))
    closing = asyncio.create_task(connection.close())
    await asyncio.sleep(0)
    connection.stop()
    done, _ = await asyncio.wait([closing], timeout=10)
    assert done, "it waits for a thread that is gone"
    assert closing.exception() is None


async def test_nothing_is_left_of_transactions_that_were_cancelled_again_and_again(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/one.db")

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
    left = asyncio.all_tasks() - before
    if left:
        _, left = await asyncio.wait(left, timeout=10)
    assert not left
    await database.close()


async def test_a_transaction_ends_with_its_connection(tmp_path: Path) -> None:
    """Also where somebody was cancelled who read, and something still holds what they had not read to its end."""
    left, other = [await Connection(str(tmp_path / "one.db"), isolation_level=None, timeout=0) for _ in range(2)]
    await left.execute("PRAGMA journal_mode = WAL")
    await left.execute("CREATE TABLE rows (number)")
    await left.execute("BEGIN IMMEDIATE")
    await left.execute("INSERT INTO rows VALUES (1), (2)")
    unread = await left.execute("SELECT number FROM rows")
    assert await unread.fetchone() == (1,)
    await left.close()
    await other.execute("BEGIN IMMEDIATE")
    assert await (await other.execute("SELECT count(*) FROM rows")).fetchone() == (0,), "it was rolled back"
    await other.close()
