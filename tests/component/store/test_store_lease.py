"""One leader; takeover in three seconds; a leader that was suspended cannot write."""

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
from sqlalchemy import delete, select, update

from clonos.errors import ConcurrentUpdate
from clonos.testing.harness import Deadline
from clonos_api.store import events, lease, lookups
from clonos_api.store.db.clock import clock, now
from clonos_api.store.db.database import Database
from clonos_api.store.tables import LeaseRow
from support.busy import within
from support.stored import unique

pytestmark = pytest.mark.anyio
# SQLite has one writer at a time, and one control plane: a suspended process may hold its only lock.
ON_POSTGRESQL = pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True, scope="module")
HOLDER = Path(__file__).with_name("holder.py")


@pytest.fixture(autouse=True)
async def free(database: Database) -> None:
    """Removes the lease: no replica leads."""
    async with database.transaction() as session:
        await session.execute(delete(LeaseRow))


async def take(database: Database, holder: str, ttl_s: float = 60) -> int | None:
    return await lease.acquire(database, holder, ttl_s=ttl_s)


async def test_the_fencing_token_grows_with_each_holder(database: Database) -> None:
    assert await take(database, "a") == 1
    assert await take(database, "b") is None
    assert await take(database, "a") == 1, "it has it"
    assert await lease.renew(database, "a", 1)
    assert not await lease.renew(database, "b", 1)
    assert not await lease.renew(database, "a", 2)
    async with database.transaction() as session:
        await lease.release(session, "b", 1)
    assert await take(database, "b") is None
    async with database.transaction() as session:
        await lease.release(session, "a", 1)
    assert not await lease.renew(database, "a", 1)
    assert await take(database, "b", ttl_s=-1) == 2
    assert not await lease.renew(database, "b", 2), "it is over"
    assert await take(database, "b") == 3, "a new token fences the writes of the old lease"


async def test_one_of_many_candidates_gets_the_lease(url: str) -> None:
    replicas = [Database(url, pool_size=4, wait_s=60) for _ in range(3)]
    got = await asyncio.gather(*(take(replicas[number % 3], f"h{number}") for number in range(18)))
    assert [result for result in got if result is not None] == [1]
    for replica in replicas:
        await replica.close()


async def test_a_stale_leader_writes_nothing(database: Database) -> None:
    kind = unique("e.")
    with pytest.raises(ConcurrentUpdate):
        async with database.transaction() as session:
            await lease.check(session, "a", 1)  # there is no lease yet
    assert await take(database, "a", ttl_s=-1) == 1
    assert await take(database, "b") == 2
    for holder, token in (("a", 1), ("a", 2), ("b", 1)):
        with pytest.raises(ConcurrentUpdate):
            async with database.transaction() as session:
                await lease.check(session, holder, token)
    async with database.transaction() as session:
        await lease.check(session, "b", 2)
        events.append(session, kind)
    async with database.reading() as session:
        assert len(await events.after(session, 0, types=[kind])) == 1


@ON_POSTGRESQL
async def test_a_leader_that_is_replaced_during_a_transaction_cannot_commit(database: Database) -> None:
    kind = unique("e.")
    assert await take(database, "a", ttl_s=0.1) == 1

    async def write() -> None:
        async with database.transaction() as session:
            await lease.check(session, "a", 1)
            events.append(session, kind)
            await asyncio.sleep(0.2)  # the lease expires
            assert await take(database, "b") == 2

    with pytest.raises(ConcurrentUpdate):
        await write()
    async with database.reading() as session:
        assert await events.after(session, 0, types=[kind]) == []


async def test_a_holder_stops_by_its_own_clock_before_the_lease_expires(database: Database) -> None:
    clock = [100.0]
    leader = lease.Leader(database, "a", ttl_s=60.0, clock=lambda: clock[0])
    await leader._once()
    assert leader.fencing_token == 1
    clock[0] += 60.0 - lease.MARGIN_S - 0.01
    assert leader.fencing_token == 1
    clock[0] += 0.02
    assert leader.fencing_token is None
    await leader._once()
    assert leader.fencing_token == 1, "renewed: it was still its own"
    await leader.resign()
    assert leader.fencing_token is None
    assert await take(database, "b") == 2


async def test_changed_returns_when_leadership_changes(database: Database) -> None:
    leader = lease.Leader(database, "a", ttl_s=60.0, renew_s=0.05)
    changed = asyncio.create_task(leader.changed())
    running = asyncio.create_task(leader.run())
    await asyncio.wait_for(changed, 60)
    assert leader.fencing_token == 1
    changed = asyncio.create_task(leader.changed())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait_for(changed, 60)
    await asyncio.gather(running, return_exceptions=True)
    assert leader.fencing_token is None
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
    """The events of a holder: (seq, token)."""
    async with database.reading() as session:
        rows = await events.after(session, after, types=["led"], limit=100_000)
    return [(row.seq, row.data["token"]) for row in rows if row.data["holder"] == holder]


async def wait_for(database: Database, holder: str, after: int = 0, timeout_s: float = 60) -> list[tuple[int, int]]:
    deadline = Deadline(timeout_s)
    while not (actual := await led(database, holder, after)):
        assert not deadline.passed(), f"{holder} did not lead"
        await asyncio.sleep(0.01)
    return actual


async def test_takeover_from_a_killed_leader(database: Database, holders: Holders) -> None:
    await take_over(database, holders, signal.SIGKILL)


@ON_POSTGRESQL
async def test_takeover_from_a_stopped_leader(database: Database, holders: Holders) -> None:
    await take_over(database, holders, signal.SIGSTOP)


async def take_over(database: Database, holders: Holders, how: signal.Signals) -> None:
    old, new = unique("old"), unique("new")
    first = holders.start(old)
    token = (await wait_for(database, old))[0][1]
    holders.start(new)
    async with database.reading() as session:
        mark = (await events.bounds(session))[1]
    os.kill(first.pid, how)
    with within(30.0):  # three seconds on an idle machine
        took_over = (await wait_for(database, new, mark))[0]
    assert took_over[1] > token
    if how == signal.SIGSTOP:
        os.kill(first.pid, signal.SIGCONT)
        # It continues and tries to write; its connection may be closed before that.
        actual = await asyncio.to_thread(lines_until, first, "ConcurrentUpdate")
        assert actual.count("ConcurrentUpdate") == 1, actual[-5:]
    assert max(seq for seq, _ in await led(database, old)) < took_over[0], "the old leader wrote after the new one"


def lines_until(process: subprocess.Popen[str], last: str) -> list[str]:
    """The output of a process, up to a line or for a minute."""
    assert process.stdout is not None
    actual: list[str] = []
    deadline = time.monotonic() + 60
    while last not in actual and time.monotonic() < deadline:
        actual.append(process.stdout.readline().strip())
    return actual


async def ends_in(database: Database, seconds: float) -> None:
    async with database.transaction() as session:
        await session.execute(update(LeaseRow).values(expires_at=clock(seconds)))


async def test_a_lease_from_before_the_clock_was_set_back_ends(database: Database) -> None:
    """Its holder was killed, and the clock was an hour ahead: another replica leads after the lease's time."""
    assert await take(database, "a", ttl_s=2) == 1
    await ends_in(database, 3600)
    assert await take(database, "b", ttl_s=2) is None
    async with database.reading() as session:
        row = (await session.execute(select(LeaseRow))).scalar_one()
        assert row.holder == "a"
        assert (row.expires_at - await now(session)).total_seconds() <= 2
        assert not await lookups.leaderless(session)
    assert await lease.renew(database, "a", 1, ttl_s=2), "a holder that lives keeps it"
    await ends_in(database, -0.1)
    assert await take(database, "b", ttl_s=2) == 2


async def test_nobody_leads(database: Database) -> None:
    async def leaderless() -> bool:
        async with database.reading() as session:
            return await lookups.leaderless(session)

    assert await leaderless()
    assert await take(database, "a", ttl_s=2) == 1
    for seconds, expected in ((2, False), (-1, False), (-10, True), (3600, True)):
        await ends_in(database, seconds)
        assert await leaderless() is expected, seconds
