"""Folders on a mounted file system, for savepoints: as `clonos.spark.stored_files`, without a JVM."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

from clonos.errors import CheckpointDamaged, SpecError


class LocalFolder:
    """One folder. Every method may raise `OSError`, as those of `StoredFolder`.

    Hadoop's checksum of a file, ``.NAME.crc``, belongs to the file. Links are never followed: they may lead to a file
    that is not the job's.

    Args:
        location: Path or ``file:`` URI of the folder.

    Raises:
        SpecError: The location is on another file system.
    """

    is_store_of_objects: bool = False

    def __init__(self, location: str) -> None:
        parts = urlsplit(location)
        if parts.scheme not in ("", "file"):
            raise SpecError(
                f"{location} is not a mounted directory: savepoints are copies of files.",
                hint="name a path that every host has mounted.",
            )
        self.location = location.rstrip("/")
        self.path = Path(unquote(parts.path) if parts.scheme else location).absolute()

    def at(self, location: str) -> Self:
        """Another folder."""
        return type(self)(location)

    def files(self) -> dict[str, int]:
        """Path in the folder → size in bytes, of all files; empty if there is no folder.

        A log's folder ``commits`` is listed before the folders ``offsets`` and ``state``, whose files of a committed
        epoch are therefore among those found.

        Raises:
            CheckpointDamaged: A folder is a link.
        """
        sizes: dict[str, int] = {}
        for parent, folders, names in os.walk(self.path):
            folders.sort()
            for folder in folders:
                if Path(parent, folder).is_symlink():
                    raise _not_regular(Path(parent, folder))
            for name in sorted(names):
                file = Path(parent, name)
                if not _is_checksum(name):
                    with contextlib.suppress(FileNotFoundError):  # removed in the meantime
                        sizes[str(file.relative_to(self.path))] = file.lstat().st_size
        return sizes

    def exists(self, name: str = "") -> bool:
        """Whether the folder, or a file or folder in it, exists."""
        return (self.path / name).exists()

    def read_text(self, name: str) -> str | None:
        """Return the content of a file; None if there is none."""
        return _text_in(self.path, name)

    def texts_above(self, name: str) -> list[str | None]:
        """Return the contents of the files `name` in the folders above this one, whether it exists or not.

        A file that this user may not read counts as missing. Links to this folder are followed.
        """
        texts: list[str | None] = []
        for parent in self.path.resolve().parents:
            with contextlib.suppress(PermissionError):
                texts.append(_text_in(parent, name))
        return texts

    def write_text(self, name: str, text: str) -> None:
        """Write or replace a file."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text)

    def copy(self, target: Self, names: Collection[str]) -> list[str]:
        """Copy files into another folder; returns the names of those that do not exist.

        Raises:
            CheckpointDamaged: A file is a link, or not regular.
        """
        return [name for name in names if not _transfer(self.path / name, target.path / name, _copy_file)]

    @contextlib.contextmanager
    def held(self, names: Collection[str]) -> Iterator[Self]:
        """Yield a folder whose files nobody removes inside the context: links to the files of this folder."""
        links = self.path / f".savepoint-{uuid.uuid4().hex[:12]}"
        try:
            for name in names:
                _transfer(self.path / name, links / name, _link_file)
            yield self.at(str(links))
        finally:
            shutil.rmtree(links, ignore_errors=True)

    def sync(self) -> None:
        """Write all files and directories to the disk: a savepoint must survive a crash of the host."""
        for parent, _, names in os.walk(self.path):
            for name in (*names, "."):
                handle = os.open(Path(parent, name), os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)

    def delete(self, name: str = "") -> None:
        """Remove the folder, or a file or folder in it, if it exists."""
        path = self.path / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def rename(self, target: Self) -> None:
        """Move the folder within its file system."""
        self.path.rename(target.path)

    def siblings(self, suffix: str) -> list[Self]:
        """Return the folders whose name begins with this one's name and `suffix`."""
        beside = self.path.parent.glob(f"{glob.escape(self.path.name)}{glob.escape(suffix)}*")
        own = len(self.path.name)
        return [self.at(f"{self.location}{path.name[own:]}") for path in beside if path.is_dir()]


def _text_in(folder: Path, name: str) -> str | None:
    """Return the content of a file in a folder; None if there is none."""
    try:
        return (folder / name).read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_checksum(name: str) -> bool:
    return name.startswith(".") and name.endswith(".crc")


def _transfer(source: Path, target: Path, transfer: Callable[[Path, Path], None]) -> bool:
    """Copy or link a file and Hadoop's checksum of it; returns whether the file exists."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        transfer(source, target)
        with contextlib.suppress(FileNotFoundError):
            transfer(source.with_name(f".{source.name}.crc"), target.with_name(f".{target.name}.crc"))
    except FileNotFoundError:
        return False
    return True


def _link_file(source: Path, target: Path) -> None:
    if not stat.S_ISREG(source.lstat().st_mode):
        raise _not_regular(source)
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links
        _copy_file(source, target)


def _copy_file(source: Path, target: Path) -> None:
    """Copy a regular file. A link may lead to a file that is not the job's, and a pipe would block."""
    try:
        handle = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _not_regular(source) from error
        raise
    with os.fdopen(handle, "rb") as content:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise _not_regular(source)
        with target.open("wb") as copy:
            shutil.copyfileobj(content, copy)


def _not_regular(file: Path) -> CheckpointDamaged:
    return CheckpointDamaged(f"{file} is not a regular file or folder.", hint="remove it: Spark writes no links.")
