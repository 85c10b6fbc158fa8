"""Readers receive events in the order of their commits, without unnecessary waits."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text

from clonos_api.store import events, hosts
from clonos_api.store.db import database as database_module
from clonos_api.store.db.database import Database
from clonos_api.store.db.notifier import Notifier
from support.busy import within
from support.stored import host_row, unique

pytestmark = pytest.mark.anyio


async def slow_commits(database: Database) -> None:
    """Delays each commit by up to 5 ms after the events got their numbers, so that commits can change their order."""
    for statement in (
        """CREATE FUNCTION doze() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN PERFORM pg_sleep(random() / 200); RETURN NULL; END $$""",
        """CREATE CONSTRAINT TRIGGER doze AFTER INSERT ON events
           DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION doze()""",
    ):
        async with database.transaction() as session:
            await session.execute(text(statement))


async def test_a_reader_misses_no_event_of_eight_writers(url: str) -> None:
    replicas = [Database(url, pool_size=5, wait_s=60) for _ in range(2)]
    kind, rounds = unique("e."), 25
    if replicas[0].dialect == "postgresql":
        await slow_commits(replicas[0])
    async with replicas[0].reading() as session:
        start = (await events.bounds(session))[1]

    async def write(number: int) -> None:
        for count in range(rounds):
            async with replicas[number % 2].transaction() as session:
                events.append(session, kind, data={"writer": number, "count": count})
                events.append(session, kind, data={"writer": number, "count": count, "second": True})

    seen: list[tuple[int, int]] = []
    done = asyncio.Event()

    async def read() -> None:
        """Reads after the largest number, like real readers: a later event with a smaller number would be lost."""
        newest = start
        while True:
            last = done.is_set()
            async with replicas[0].reading() as session:
                for row in await events.after(session, newest, types=[kind], limit=50):
                    seen.append((row.data["writer"], row.data["count"]))
                    newest = row.seq
                    last = False
            if last:
                return
            await asyncio.sleep(0)

    reader = asyncio.create_task(read())
    await asyncio.gather(*(write(number) for number in range(8)))
    done.set()
    await reader
    assert len(seen) == 8 * rounds * 2
    for number in range(8):
        assert [count for writer, count in seen if writer == number] == [n for n in range(rounds) for _ in (0, 1)]
    for replica in replicas:
        await replica.close()


async def test_a_rolled_back_event_wakes_no_reader(database: Database) -> None:
    kind = unique("e.")

    async def fail() -> None:
        async with database.transaction() as session:
            events.append(session, kind)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    async with database.reading() as session:
        assert await events.after(session, 0, types=[kind]) == []


async def test_filters_and_bounds(database: Database) -> None:
    kind, job = unique("e."), unique()
    async with database.transaction() as session:
        for number in range(5):
            events.append(session, kind, job=job if number % 2 else None, data={"n": number})
    async with database.reading() as session:
        own = await events.after(session, 0, types=[kind, "other"])
        assert [item.data["n"] for item in own] == list(range(5))
        assert [event.data["n"] for event in await events.after(session, 0, job=job)] == [1, 3]
        assert [event.data["n"] for event in await events.after(session, own[2].seq, types=[kind], limit=1)] == [3]
        oldest, newest = await events.bounds(session)
        assert oldest <= own[0].seq
        assert newest == own[-1].seq


async def test_the_process_that_commits_wakes_its_readers_at_once(database: Database) -> None:
    async with database.transaction() as session:
        events.append(session, "x")
    before = database.notifier.seq
    assert await database.notifier.wait_event(before, 0.01) == before
    waiting = asyncio.create_task(database.notifier.wait_event(before, 10))
    await asyncio.sleep(0)
    with within(8.0):
        async with database.transaction() as session:
            events.append(session, "x")
        assert await waiting > before


async def test_a_database_without_the_newest_commits_corrects_the_numbers() -> None:
    """Otherwise each poll of an agent would return at once after a failover."""
    notifier = Notifier()
    notifier.update({"host": 7, "other": 3})
    before = notifier.seen()
    notifier.update({"other": 5})  # committed during the read, which did not see it
    waiting = asyncio.create_task(notifier.wait_work("host", 7, 60))
    await asyncio.sleep(0)
    notifier.correct(before, {"host": 4, "other": 3, "new": 1})
    assert await waiting == 4
    assert notifier.seen() == {"host": 4, "other": 5, "new": 1}


async def test_commits_of_other_replicas_wake_readers(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "_LISTEN_S", 60.0)  # on PostgreSQL the notification wakes them
    here, there = Database(url, wait_s=60), Database(url, wait_s=60)
    watching = asyncio.create_task(there.watch_commits())
    async with here.transaction() as session:
        agent = await host_row(session)
    seq = await there.notifier.wait_event(0, 30)
    assert seq > 0
    revision = await there.notifier.wait_work(agent.id, 0, 30)
    assert revision > 0
    event = asyncio.create_task(there.notifier.wait_event(here.notifier.seq, 60))
    work = asyncio.create_task(there.notifier.wait_work(agent.id, revision, 60))
    with within(20.0):
        async with here.transaction() as session:
            hosts.bump(session, agent.id)
            events.append(session, "x")
        assert await work > revision
        assert await event == here.notifier.seq
    watching.cancel()
    for database in (here, there):
        await database.close()
