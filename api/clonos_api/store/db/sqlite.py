"""SQLite connections, and what writes their commits to the disk.

A connection has a thread of `aiosqlite`, and may run short statements in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import aiosqlite
from sqlalchemy import Executable
from sqlalchemy.dialects import sqlite

_POLL_S: Final = 0.005
_YIELD_S: Final = 0.005  # after this time, other tasks run before the next step
_MAY_WAIT: Final = ("BEGIN IMMEDIATE", "PRAGMA")
_FEW: Final = 500  # values of a short statement
_NAMED: Final = sqlite.dialect(paramstyle="named")


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
    """An SQLite connection, which can run short statements in the event loop, and whose thread can be stopped twice.

    A statement of SQLAlchemy has four steps, which take some ten microseconds each. On a busy machine, each change to
    the thread and back takes a hundred times as long.

    SQLAlchemy closes the connection of a cancelled task, and stops its thread if the close is cancelled too. The thread
    exits at the first stop, so a second stop would wait forever.

    Args:
        database: Path of the file.
        prompt: Run short steps of statements in the event loop. Commits, waits for SQLite's lock and statements with
            many values stay in the thread.
        options: Options of `sqlite3.connect`.
    """

    def __init__(self, database: str, *, prompt: bool = False, **options: Any) -> None:
        super().__init__(partial(sqlite3.connect, database, factory=_RollsBackOnClose, **options), 64)
        self._stopped = False
        self._thread.daemon = True
        self._prompt = prompt
        # Each number is written by one thread only.
        self._queued = 0
        self._executed = 0
        self._yielded_at = 0.0

    async def _execute(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if not self._prompt:
            return await super()._execute(fn, *args, **options)  # type: ignore[no-untyped-call]
        # A cancelled task may have left a step in the thread: the order stays.
        if self._queued != self._executed or not _is_short(fn, args):
            self._queued += 1
            return await super()._execute(self._counted, fn, *args, **options)  # type: ignore[no-untyped-call]
        if not self._running or self._connection is None:
            raise ValueError("Connection closed")  # as aiosqlite, for SQLAlchemy
        result = fn(*args, **options)
        if time.monotonic() - self._yielded_at > _YIELD_S:
            await asyncio.sleep(0)
            self._yielded_at = time.monotonic()
        return result

    def _counted(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            return fn(*args, **options)
        finally:
            self._executed += 1

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


def _is_short(fn: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether a step of a statement takes little time, and waits neither for SQLite's lock nor for the disk."""
    if not isinstance(getattr(fn, "__self__", None), sqlite3.Cursor):
        return fn.__name__ in ("cursor", "rollback")
    if fn.__name__ != "execute":
        return fn.__name__ != "executemany"
    statement, values = args
    return not statement.startswith(_MAY_WAIT) and len(values) <= _FEW


class Connections:
    """Creates the SQLite connections of one engine, and tracks them until their threads have exited."""

    def __init__(self) -> None:
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()

    def __call__(self, database: str, *, prompt: bool = False, **options: Any) -> Connection:
        """Create a connection; the caller awaits it."""
        connection = Connection(database, prompt=prompt, **options)
        self._connections.add(connection)
        return connection

    def prompt(self, database: str, **options: Any) -> Connection:
        """Create a connection that runs short steps in the event loop; the caller awaits it."""
        return self(database, prompt=True, **options)

    async def wait_closed(self, timeout_s: float) -> None:
        """Wait until the threads of all stopped connections have exited, at most `timeout_s` seconds.

        A thread that answers after the event loop was closed raises "Event loop is closed".
        """
        deadline = time.monotonic() + timeout_s
        while any(connection.stopping for connection in list(self._connections)) and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)


class Statements:
    """Executes single statements without SQLAlchemy's session, which takes ten times as long; each commits by itself.

    They have a thread and a connection of their own, because a commit may wait for the disk (a checkpoint). They do not
    wait for another writer: that is an error at once.

    Args:
        database: Path of the database.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, "clonos-statements")

    async def execute(self, statement: Executable, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Execute a statement whose parameters and results are numbers and texts; return its rows.

        Raises:
            sqlite3.Error: The statement was not executed.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, statement, values)

    async def close(self) -> None:
        """Close the connection, and end the thread."""
        if self._connection is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown()

    def _run(self, statement: Executable, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        if self._connection is None:
            self._connection = sqlite3.connect(self._database, timeout=0, isolation_level=None)
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute("PRAGMA foreign_keys = ON")
        text, constants = _compiled(statement)
        return self._connection.execute(text, {**constants, **values}).fetchall()


@lru_cache
def _compiled(statement: Executable) -> tuple[str, Mapping[str, Any]]:
    compiled = statement.compile(dialect=_NAMED)  # type: ignore[attr-defined]
    return str(compiled), compiled.params


class Disk:
    """Writes commits to the disk that SQLite has written to the operating system only (``synchronous = NORMAL``).

    Writers wait for it without SQLite's lock, and one write to the disk serves all that wait.

    Args:
        database: Path of the database. Its write-ahead log has the commits since the last checkpoint, which writes to
            the disk itself.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self._commits = 0  # number of commits of this process
        self._flushed = 0  # those among them that are on the disk
        self._faulty = False  # whether the operating system may have dropped data
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "clonos-disk")

    def committed(self) -> None:
        """Count a commit."""
        self._commits += 1

    async def flush(self) -> None:
        """Wait until all commits that were counted are on the disk.

        Raises:
            OSError: The disk has a fault: it is unknown which commits it has.
            sqlite3.Error: The database cannot be written again after a fault.
        """
        commits = self._commits
        async with self._turn:
            if self._flushed < commits:
                commits = self._commits
                await asyncio.get_running_loop().run_in_executor(self._thread, self._sync)
                self._flushed = commits

    def close(self) -> None:
        """End the thread, once it has written what it began to write."""
        self._thread.shutdown(wait=False)

    def _sync(self) -> None:
        # SQLite resolves a symbolic link before it names the log.
        database = self._database.resolve()
        if self._faulty:
            self._write_again(database)
            self._faulty = False
        try:
            file = os.open(f"{database}-wal", os.O_RDONLY)
        except FileNotFoundError:
            if not database.is_file():
                raise
            return  # SQLite removes the log after a checkpoint, when the last connection closes
        try:
            os.fdatasync(file)
        except OSError:
            self._faulty = True
            raise
        finally:
            os.close(file)

    @staticmethod
    def _write_again(database: Path) -> None:
        """Write all commits to the disk again: after a fault, Linux reports later writes as successful."""
        with contextlib.closing(sqlite3.connect(database, timeout=1.0)) as connection:
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise OSError(f"{database} is in use, and cannot be written again after a fault of the disk.")
