"""Writes the commits of an SQLite database to the disk, without its lock."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


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
