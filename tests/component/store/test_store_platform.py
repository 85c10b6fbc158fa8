"""The identity of a control plane: created once, by the replica that is first."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import delete

from clonos_api.store import platform
from clonos_api.store.db.database import Database
from clonos_api.store.tables import PlatformRow

pytestmark = pytest.mark.anyio


async def test_replicas_that_start_together_agree(url: str) -> None:
    replicas = [Database(url) for _ in range(4)]

    async def identity(database: Database) -> str:
        async with database.transaction() as session:
            return await platform.identity(session)

    try:
        async with replicas[0].transaction() as session:
            await session.execute(delete(PlatformRow))
        together = await asyncio.gather(*map(identity, replicas))
        assert len(set(together)) == 1
        assert len(together[0]) == 32
        assert await identity(replicas[1]) == together[0]
    finally:
        for database in replicas:
            await database.close()
