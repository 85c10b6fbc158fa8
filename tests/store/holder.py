"""A process that holds the lease and writes while it does; for tests that kill it and stop it.

It is stubborn: it goes on with its first token whatever its clock says, so that only the store can stop it.
"""

from __future__ import annotations

import asyncio
import sys

from clonos.errors import Fenced, StoreAway
from clonos_api.store import events, lease
from clonos_api.store.database import Database


async def main(url: str, holder: str) -> None:
    database = Database(url)
    leader = lease.Leader(database, holder)
    async with database.reading() as session:
        await events.bounds(session)
    print("ready", flush=True)
    running = asyncio.create_task(leader.run())
    token = None
    while not running.done():
        token = token or leader.token
        if token is None:
            await asyncio.sleep(0.01)
            continue
        try:
            async with database.transaction() as session:
                await lease.check(session, token)
                events.append(session, "led", data={"holder": holder, "token": token})
        except (Fenced, StoreAway) as error:
            print(type(error).__name__, flush=True)
        else:
            print("led", flush=True)
        await asyncio.sleep(0.02)


asyncio.run(main(*sys.argv[1:]))
