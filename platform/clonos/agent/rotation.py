"""A driver's log, rotated by copying and cutting, because the driver keeps the file open.

Offsets count all bytes that were ever written, so that who reads the log is not confused by a rotation. What the
driver writes in the moment between the copy and the cut is lost.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

from clonos.agent.place import write_atomically

_HEAD: Final = 256


class RotatedLog:
    """A log and the one older file that is kept of it.

    Args:
        path: The file that the driver appends to.
        limit: It is rotated at this size.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self._path = path
        self._older = path.with_name(f"{path.name}.1")
        self._new = path.with_name(f".{path.name}.1.new")
        self._note = path.with_name(f"{path.name}.base")
        self._limit = limit
        self._base = self._settle()

    def end(self) -> int:
        """Bytes that were ever written."""
        return self._base + _size(self._path)

    def start(self) -> int:
        """Offset of the oldest byte that is still there."""
        return self._base - _size(self._older)

    def read(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes at `offset`, which is not before `start`."""
        with contextlib.suppress(FileNotFoundError):
            if offset < self._base:
                return _read(self._older, offset - self.start(), min(count, self._base - offset))
            return _read(self._path, offset - self._base, count)
        return b""

    def rotate(self) -> bool:
        """Rotate if it is large enough; whether it was."""
        if _size(self._path) < self._limit:
            return False
        with self._path.open("rb+") as source, self._new.open("wb") as copy:
            os.fchmod(copy.fileno(), 0o600)
            shutil.copyfileobj(source, copy)
            copied = copy.tell()
            # Said before it is cut: after a crash in between, the files tell how far it got.
            write_atomically(self._note, f"{self._base} {copied}")
            self._new.replace(self._older)
            shutil.copyfileobj(source, copy)  # what came meanwhile
            copy.flush()
            copied = copy.tell()
            source.truncate(0)
        self._base += copied
        write_atomically(self._note, f"{self._base} 0")
        return True

    def _settle(self) -> int:
        """The base, after a crash of an earlier agent in the middle of a rotation."""
        try:
            base, copied = map(int, self._note.read_text().split())
        except (FileNotFoundError, ValueError):
            return 0
        if copied:
            if not self._new.exists():
                head = _read(self._older, 0, _HEAD)
                if _read(self._path, 0, _HEAD)[: len(head)] == head:
                    self._older.unlink()  # a copy of what is still there
                else:
                    base += _size(self._older)
            write_atomically(self._note, f"{base} 0")
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
