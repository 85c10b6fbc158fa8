"""A replica with a reconciler, as a separate process: ``python -m component.reconcile.replica URL HOME NAME``."""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import sys
from pathlib import Path

from clonos_api.reconcile import loop
from clonos_api.store.db.database import Database
from component.reconcile.acting import Placing


async def main(url: str, home: Path, name: str) -> None:
    database = Database(url)
    placing = Placing(home=home, shared_checkpoints=str(home / "shared"), replica=name)
    work = asyncio.gather(database.watch_commits(), loop.run(database, placing))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        await database.close()


if __name__ == "__main__":
    faulthandler.enable()
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
