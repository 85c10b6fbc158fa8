"""One replica that reconciles, as a process of its own: ``python -m reconcile.replica URL HOME NAME``."""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import sys
from pathlib import Path

from clonos_api.reconcile import service
from clonos_api.store.database import Database
from reconcile.acting import Placing


async def main(url: str, home: Path, name: str) -> None:
    database = Database(url)
    placing = Placing(home=home, shared_checkpoints=str(home / "shared"), replica=name)
    work = asyncio.gather(database.notifier.watch(database), service.run(database, placing, database.notifier))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        await database.close()


if __name__ == "__main__":
    faulthandler.enable()
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
