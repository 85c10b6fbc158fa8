"""SQLite's connections: each is a thread."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
import weakref
from functools import partial
from typing import Any, Final

import aiosqlite

_LOOK_S: Final = 0.005


class _RolledBack(sqlite3.Connection):
    """One whose transaction ends with it.

    SQLite keeps a closed connection for as long as there is a statement that was not read to its end, and with it the
    transaction: after a cancelled request nobody could write until the garbage was collected.
    """

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # closed already, or its file is gone
            self.rollback()
        super().close()


class Connection(aiosqlite.Connection):
    """One that can be ended twice.

    SQLAlchemy closes a connection whose user was cancelled, and ends it at once if it is cancelled in that as well. The
    thread stops at the first word; whoever said the second one waited for an answer for ever, and a service that was to
    end never did.
    """

    def __init__(self, database: str, **options: Any) -> None:
        super().__init__(partial(sqlite3.connect, database, factory=_RolledBack, **options), 64)
        self._ended = False
        self._thread.daemon = True

    def stop(self) -> asyncio.Future[Any] | None:
        """End the thread; nothing to wait for if that was said before."""
        if self._ended:
            return None
        self._ended = True
        return super().stop()

    @property
    def ending(self) -> bool:
        """Whether its thread was told to end and has not yet."""
        return self._ended and self._thread.is_alive()


class Connections:
    """Makes them for one engine, and knows of all that were made."""

    def __init__(self) -> None:
        self._made: weakref.WeakSet[Connection] = weakref.WeakSet()

    def __call__(self, database: str, **options: Any) -> Connection:
        """Another one; await it."""
        made = Connection(database, **options)
        self._made.add(made)
        return made

    async def over(self, patience_s: float) -> None:
        """Wait until no thread is left that would tell an event loop which is closed by then; not for ever."""
        deadline = time.monotonic() + patience_s
        while any(one.ending for one in list(self._made)) and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_S)
