"""Replicas as real processes: when the leader is killed or suspended, another replica leads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from clonos.errors import DatabaseUnavailable
from clonos_api.reconcile import loop
from clonos_api.store.db import schema
from clonos_api.store.db.database import Database
from clonos_api.store.tables import LeaseRow
from component.reconcile.acting import Placing, Users, eventually, reconciling, running_hosts
from support.postgres import PostgresServer

pytestmark = pytest.mark.anyio
TESTS = Path(__file__).parents[2]
TAKEOVER_S = 60.0  # three on an idle machine: a lease lasts two
# An open transaction may wait this long for the only writer of SQLite, and for the disk.
ENDED_S = 60.0


class Replicas:
    """Processes by name."""

    def __init__(self, url: str, home: Path) -> None:
        self._url, self._home = url, home
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        with (self._home / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "component.reconcile.replica", self._url, str(self._home), name],
                env={**os.environ, "PYTHONPATH": str(TESTS)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def log(self, name: str) -> str:
        return (self._home / f"{name}.log").read_text()

    async def ended(self, name: str) -> int:
        """Returns its exit code; a process that hangs prints its stack."""
        process = self.processes[name]
        try:
            return await asyncio.to_thread(process.wait, ENDED_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            await asyncio.to_thread(process.wait, ENDED_S)
            pytest.fail(f"Replica {name} did not end in {ENDED_S:g} s:\n{self.log(name)[-4000:]}")

    def close(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(60)


@pytest.fixture
def replicas(database_url: str, tmp_path: Path) -> Iterator[Replicas]:
    """None yet."""

    @contextmanager
    def closing() -> Iterator[Replicas]:
        made = Replicas(database_url, tmp_path)
        try:
            yield made
        finally:
            made.close()

    with closing() as made:
        yield made


async def leader(database: Database) -> tuple[str, int]:
    """The replica that leads, and its token."""

    async def there() -> tuple[str, int] | None:
        async with database.reading() as session:
            row = await session.get(LeaseRow, "leader")
        return (row.holder.partition(":")[0], row.fencing_token) if row is not None else None

    leadership: tuple[str, int] = await eventually(there, "a replica leads")
    return leadership


@pytest.mark.parametrize(
    "how",
    [signal.SIGKILL, *(pytest.param(number, marks=pytest.mark.full) for number in (signal.SIGTERM, signal.SIGSTOP))],
    ids=lambda number: number.name,
)
async def test_another_replica_takes_over(database: Database, replicas: Replicas, how: signal.Signals) -> None:
    users = Users(database)
    replicas.start("one")
    await asyncio.to_thread(_started, replicas, "one")
    first, token = await leader(database)
    replicas.start("two")
    await asyncio.to_thread(_started, replicas, "two")
    async with running_hosts(database, "a", slots=4):
        await users.submit("before")
        await users.until("RUNNING", name="before")
        begun = datetime.now(UTC)
        if how is signal.SIGSTOP:
            await _stop_outside_a_write(database, replicas.processes[first])
        else:
            replicas.processes[first].send_signal(how)
        await users.submit("after")
        await users.until("RUNNING", name="after")
        moved = [event.at for event in await users.happened("job.state") if event.at > begun]
        assert (moved[0] - begun).total_seconds() <= TAKEOVER_S
        second, newer = await leader(database)
        assert second == "two"
        assert newer > token
        if how is signal.SIGSTOP:
            replicas.processes[first].send_signal(signal.SIGCONT)

            async def noticed() -> bool:
                return "lease-lost" in replicas.log(first)

            await users.submit("then")
            await users.until("RUNNING", name="then")
            await eventually(noticed, "the one that slept sees that it leads no more")
            assert (await leader(database))[1] >= newer
        for name in ("before", "after"):
            assert len(await users.runs(name)) == 1
        await _in_order(users)
        if how is signal.SIGTERM:
            assert await replicas.ended(first) == 0
        replicas.processes["two"].send_signal(signal.SIGTERM)
        assert await replicas.ended("two") == 0


async def test_a_database_that_was_away_for_longer_than_leases_last_costs_no_host(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_REJOIN_S", 60.0)  # the job may take long to be STARTING
    url = postgres.create_database(f"away{secrets.token_hex(4)}")
    await asyncio.to_thread(schema.upgrade, url)
    database = Database(url, wait_s=0.5)
    users, placing = Users(database), Placing(home=tmp_path, host_lease_s=1.0)
    async with reconciling(database, placing), running_hosts(database, "a", "b", lease_s=1.0) as on:
        await users.submit("before")
        first = await users.until("RUNNING", name="before")
        for actor in on.values():
            actor.hidden = True  # they back off, and reconnect a little later than the leader
        with postgres.away():  # no lease is renewed in this time
            begun = time.monotonic()

            async def long() -> bool:
                return time.monotonic() - begun > 3.0

            await eventually(long, "all leases are over")

        async def back() -> bool:
            with contextlib.suppress(DatabaseUnavailable):
                return (await users.job("before")).run == first.run
            return False

        await eventually(back, "the database is back")
        await users.submit("after")
        await users.until("STARTING", name="after")
        for actor in on.values():
            actor.hidden = False
        await users.until("RUNNING", name="after")
        assert (await users.job("before")).run == first.run
        assert not await users.happened("host.lost")
    await database.close()


async def _in_order(users: Users) -> None:
    """Each transition begins in the state where the previous one ended: no stale leader wrote."""
    at: dict[str, str] = {}
    for event in await users.happened("job.state"):
        assert at.get(event.job, "CREATED") == event.data["from"]
        at[event.job] = event.data["to"]


async def _stop_outside_a_write(database: Database, process: subprocess.Popen[bytes]) -> None:
    """Stop a replica at a moment when it holds no lock of SQLite.

    PostgreSQL ends the transaction of a stopped client after a timeout. SQLite does not: its other users get
    `DatabaseUnavailable` until the stopped process resumes (see `Database`).
    """
    probe = Database(database.url.render_as_string(hide_password=False), wait_s=0.5)
    try:
        while True:
            process.send_signal(signal.SIGSTOP)
            try:
                async with probe.transaction():
                    return
            except DatabaseUnavailable:
                process.send_signal(signal.SIGCONT)
                await asyncio.sleep(0.05)
    finally:
        await probe.close()


def _started(replicas: Replicas, name: str) -> None:
    """Waits until a replica has started and polls for the lease: its connections are open."""
    from clonos.testing.harness import eventually as soon

    soon(lambda: "waiting-for-lease" in replicas.log(name), f"{name} has started")
