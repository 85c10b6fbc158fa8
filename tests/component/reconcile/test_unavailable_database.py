"""The reconciler while the database is unavailable."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from pathlib import Path

import pytest

from clonos.errors import DatabaseUnavailable
from clonos_api.reconcile import loop
from clonos_api.store.db import schema
from clonos_api.store.db.database import Database
from component.reconcile.acting import Placing, Users, eventually, reconciling, running_hosts
from support.postgres import PostgresServer

pytestmark = pytest.mark.anyio


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
