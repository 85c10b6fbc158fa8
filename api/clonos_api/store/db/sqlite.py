"""SQLite connections. Each connection is a thread of `aiosqlite`."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
import weakref
from functools import partial
from typing import Any, Final

import aiosqlite

_POLL_S: Final = 0.005


class _RollsBackOnClose(sqlite3.Connection):
    """A connection whose transaction ends when it is closed.

    SQLite keeps a closed connection, and its transaction, while one of its statements has unread rows. After a
    cancelled request nobody could write until the garbage collector removed that statement.
    """

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # closed already, or its file was removed
            self.rollback()
        super().close()


class Connection(aiosqlite.Connection):
    """An SQLite connection whose thread can be stopped twice.

    SQLAlchemy closes the connection of a cancelled task, and stops its thread if the close is cancelled too. The thread
    exits at the first stop, so a second stop would wait forever.
    """

    def __init__(self, database: str, **options: Any) -> None:
        super().__init__(partial(sqlite3.connect, database, factory=_RollsBackOnClose, **options), 64)
        self._stopped = False
        self._thread.daemon = True

    def stop(self) -> asyncio.Future[Any] | None:
        """Request the exit of the connection's thread, and return a future of the exit; None if `stop` was called
        before.
        """
        if self._stopped:
            return None
        self._stopped = True
        return super().stop()

    @property
    def stopping(self) -> bool:
        """Whether the exit of the connection's thread is requested but not complete."""
        return self._stopped and self._thread.is_alive()


class Connections:
    """Creates the SQLite connections of one engine, and tracks them until their threads have exited."""

    def __init__(self) -> None:
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()

    def __call__(self, database: str, **options: Any) -> Connection:
        """Create a connection; the caller awaits it."""
        connection = Connection(database, **options)
        self._connections.add(connection)
        return connection

    async def wait_closed(self, timeout_s: float) -> None:
        """Wait until the threads of all stopped connections have exited, at most `timeout_s` seconds.

        A thread that answers after the event loop was closed raises "Event loop is closed".
        """
        deadline = time.monotonic() + timeout_s
        while any(connection.stopping for connection in list(self._connections)) and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
