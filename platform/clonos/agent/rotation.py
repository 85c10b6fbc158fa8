"""The log file of a driver. It is rotated by copy and truncation, because the driver keeps the file open.

Offsets count all bytes ever written, so that a rotation does not change the offsets of the bytes that remain. Output
that the driver writes between the copy and the truncation is lost.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

from clonos.private_folders import write_private

_HEAD: Final = 256


class RotatedLog:
    """The log file that a driver appends to, with its previous file (``.1``); it is rotated at `limit` bytes."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path = path
        self._previous = path.with_name(f"{path.name}.1")
        self._new = path.with_name(f".{path.name}.1.new")
        self._base_file = path.with_name(f"{path.name}.base")
        self._limit = limit
        self._base = self._recover()

    def end(self) -> int:
        """Offset at which the log ends: the number of bytes ever written."""
        return self._base + _size(self._path)

    def start(self) -> int:
        """Offset of the oldest byte that remains."""
        return self._base - _size(self._previous)

    def read(self, offset: int, count: int) -> bytes:
        """Read up to `count` bytes at `offset`, which must be `start` or later."""
        with contextlib.suppress(FileNotFoundError):
            if offset < self._base:
                return _read(self._previous, offset - self.start(), min(count, self._base - offset))
            return _read(self._path, offset - self._base, count)
        return b""

    def rotate(self) -> bool:
        """Rotate the log if it has reached the limit; returns whether it had."""
        if _size(self._path) < self._limit:
            return False
        with self._path.open("rb+") as source, self._new.open("wb") as copy:
            os.fchmod(copy.fileno(), 0o600)
            shutil.copyfileobj(source, copy)
            copied = copy.tell()  # codespell:ignore tell
            # Recorded before the truncation: after a crash, `_recover` compares the files to see which step was last.
            write_private(self._base_file, f"{self._base} {copied}")
            self._new.replace(self._previous)
            shutil.copyfileobj(source, copy)  # output written since the first copy
            copy.flush()
            copied = copy.tell()  # codespell:ignore tell
            source.truncate(0)
        self._base += copied
        write_private(self._base_file, f"{self._base} 0")
        return True

    def _recover(self) -> int:
        """Read the offset of the file's first byte; complete or undo a rotation that an earlier agent started."""
        try:
            base, copied = map(int, self._base_file.read_text().split())
        except (FileNotFoundError, ValueError):
            return 0
        if copied:
            if not self._new.exists():
                head = _read(self._previous, 0, _HEAD)
                if _read(self._path, 0, _HEAD)[: len(head)] == head:
                    self._previous.unlink()  # a copy of bytes that the log still has
                else:
                    base += _size(self._previous)
            write_private(self._base_file, f"{base} 0")
        self._new.unlink(missing_ok=True)
        return base


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _read(path: Path, offset: int, count: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(count)
