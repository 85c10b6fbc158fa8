"""One leader; takeover in three seconds; whoever slept writes nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete

from clonos.errors import Fenced
from clonos_api.store import events, lease
from clonos_api.store.database import Database
from clonos_api.store.tables import LeaseRow
from stored import unique

pytestmark = pytest.mark.anyio
# SQLite has one writer at a time, and one control plane: a process that is stopped may hold its only lock.
ON_POSTGRESQL = pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True, scope="module")
HOLDER = Path(__file__).with_name("holder.py")


@pytest.fixture(autouse=True)
async def free(database: Database) -> None:
    """Nobody leads yet."""
    async with database.transaction() as session:
        await session.execute(delete(LeaseRow))


async def take(database: Database, holder: str, ttl_s: float = 60) -> int | None:
    async with database.transaction() as session:
        return await lease.acquire(session, holder, ttl_s=ttl_s)


async def test_the_token_goes_up_with_each_holder(database: Database) -> None:
    assert await take(database, "a") == 1
    assert await take(database, "b") is None
    assert await take(database, "a") == 1, "it has it"
    async with database.transaction() as session:
        assert await lease.renew(session, "a", 1)
        assert not await lease.renew(session, "b", 1)
        assert not await lease.renew(session, "a", 2)
        await lease.release(session, "b", 1)
    assert await take(database, "b") is None
    async with database.transaction() as session:
        await lease.release(session, "a", 1)
        assert not await lease.renew(session, "a", 1)
    assert await take(database, "b", ttl_s=-1) == 2
    async with database.transaction() as session:
        assert not await lease.renew(session, "b", 2), "it is over"
    assert await take(database, "b") == 3, "what was begun under the old one must not go on"


async def test_of_many_one_gets_it(url: str) -> None:
    replicas = [Database(url, pool_size=4) for _ in range(3)]
    got = await asyncio.gather(*(take(replicas[number % 3], f"h{number}") for number in range(18)))
    assert [one for one in got if one is not None] == [1]
    for replica in replicas:
        await replica.close()


async def test_a_stale_leader_writes_nothing(database: Database) -> None:
    kind = unique("e.")
    assert await take(database, "a", ttl_s=-1) == 1
    assert await take(database, "b") == 2
    with pytest.raises(Fenced):
        async with database.transaction() as session:
            await lease.check(session, 1)
    with pytest.raises(Fenced):
        async with database.transaction() as session:
            await lease.check(session, 1, name="another")
    async with database.transaction() as session:
        await lease.check(session, 2)
        events.append(session, kind)
    async with database.reading() as session:
        assert len(await events.after(session, 0, types=[kind])) == 1


@ON_POSTGRESQL
async def test_a_leader_that_is_replaced_in_the_middle_of_a_transaction(database: Database) -> None:
    kind = unique("e.")
    assert await take(database, "a", ttl_s=0.1) == 1

    async def write() -> None:
        async with database.transaction() as session:
            await lease.check(session, 1)
            events.append(session, kind)
            await asyncio.sleep(0.2)  # the lease is over meanwhile
            assert await take(database, "b") == 2

    with pytest.raises(Fenced):
        await write()
    async with database.reading() as session:
        assert await events.after(session, 0, types=[kind]) == []


async def test_a_holder_stops_by_its_own_clock_before_the_lease_is_over(database: Database) -> None:
    clock = [100.0]
    leader = lease.Leader(database, "a", clock=lambda: clock[0])
    await leader._once()
    assert leader.token == 1
    clock[0] += lease.TTL_S - lease.MARGIN_S - 0.01
    assert leader.token == 1
    clock[0] += 0.02
    assert leader.token is None
    await leader._once()
    assert leader.token == 1, "renewed: it was still its own"
    await leader.resign()
    assert leader.token is None
    assert await take(database, "b") == 2


async def test_changes_are_told(database: Database) -> None:
    leader = lease.Leader(database, "a", renew_s=0.05)
    changed = asyncio.create_task(leader.changed())
    running = asyncio.create_task(leader.run())
    await asyncio.wait_for(changed, 5)
    assert leader.token == 1
    changed = asyncio.create_task(leader.changed())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait_for(changed, 5)
    await asyncio.gather(running, return_exceptions=True)
    assert leader.token is None
    assert await take(database, "b") == 2, "given up at once"


class Holders:
    """Processes of `holder.py`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, holder: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(HOLDER), self._url, holder]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def holders(url: str) -> Iterator[Holders]:
    holders = Holders(url)
    yield holders
    holders.end()


async def led(database: Database, holder: str, after: int = 0) -> list[tuple[int, int]]:
    """What a holder wrote: (seq, token)."""
    async with database.reading() as session:
        rows = await events.after(session, after, types=["led"], limit=100_000)
    return [(row.seq, row.data["token"]) for row in rows if row.data["holder"] == holder]


async def wait_for(database: Database, holder: str, after: int = 0, timeout_s: float = 15) -> list[tuple[int, int]]:
    deadline = time.monotonic() + timeout_s
    while not (found := await led(database, holder, after)):
        assert time.monotonic() < deadline, f"{holder} did not lead"
        await asyncio.sleep(0.01)
    return found


async def test_takeover_from_a_leader_that_was_killed(database: Database, holders: Holders) -> None:
    await take_over(database, holders, signal.SIGKILL)


@ON_POSTGRESQL
async def test_takeover_from_a_leader_that_sleeps(database: Database, holders: Holders) -> None:
    await take_over(database, holders, signal.SIGSTOP)


async def take_over(database: Database, holders: Holders, how: signal.Signals) -> None:
    old, new = unique("old"), unique("new")
    first = holders.start(old)
    token = (await wait_for(database, old))[0][1]
    holders.start(new)
    async with database.reading() as session:
        mark = (await events.bounds(session))[1]
    os.kill(first.pid, how)
    began = time.monotonic()
    took_over = (await wait_for(database, new, mark))[0]
    assert time.monotonic() - began < 10.0  # three where nothing else runs
    assert took_over[1] == token + 1
    if how == signal.SIGSTOP:
        os.kill(first.pid, signal.SIGCONT)
        # It goes on where it was, and tries; perhaps its connection is gone first.
        told = await asyncio.to_thread(lines_until, first, "Fenced")
        assert told.count("Fenced") == 1, told[-5:]
    assert max(seq for seq, _ in await led(database, old)) < took_over[0], "the old leader wrote after the new one"


def lines_until(process: subprocess.Popen[str], last: str) -> list[str]:
    """What a process prints, up to a line or for ten seconds."""
    assert process.stdout is not None
    told: list[str] = []
    deadline = time.monotonic() + 10
    while last not in told and time.monotonic() < deadline:
        told.append(process.stdout.readline().strip())
    return told
