"""A process that holds the lease and writes events; tests kill and suspend it.

It continues with its first fencing token after its lease has expired, so that only the store can fence it.
"""

from __future__ import annotations

import asyncio
import sys

from clonos.errors import ConcurrentUpdate, DatabaseUnavailable
from clonos_api.store import events, lease
from clonos_api.store.db.database import Database


async def main(url: str, holder: str) -> None:
    database = Database(url)
    leader = lease.Leader(database, holder)
    async with database.reading() as session:
        await events.bounds(session)
    print("ready", flush=True)
    running = asyncio.create_task(leader.run())
    token = None
    while not running.done():
        token = token or leader.fencing_token
        if token is None:
            await asyncio.sleep(0.01)
            continue
        try:
            async with database.transaction() as session:
                await lease.check(session, holder, token)
                events.append(session, "led", data={"holder": holder, "token": token})
        except (ConcurrentUpdate, DatabaseUnavailable) as error:
            print(type(error).__name__, flush=True)
        else:
            print("led", flush=True)
        await asyncio.sleep(0.02)


asyncio.run(main(*sys.argv[1:]))
