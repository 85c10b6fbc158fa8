"""Savepoints: a copy of a job's checkpoint at finished epochs, taken while the job runs.

Spark writes every file of a checkpoint once and under a name of its own, and removes it some hundred epochs later. So
the files of the newest committed epoch are linked into a folder beside them first, in milliseconds, and
copied from there, however long that takes.

A savepoint has the layout of a checkpoint, and ``savepoint.json`` with what it holds.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from clonos.errors import CheckpointUnwritable, SavepointMissing, SpecError

MANIFEST: Final = "savepoint.json"
_LOGS: Final = ("offsets", "commits")
_VERSIONED: Final = re.compile(r"(\d+)(?:_[^.]*)?\.(?:changelog|zip|delta|snapshot)$")


class Copied(NamedTuple):
    """What a copy holds.

    Attributes:
        epochs: Query → newest committed epoch in it.
        size_bytes: Of all its files.
    """

    epochs: dict[str, int]
    size_bytes: int


def take_savepoint(checkpoint: str, target: str, *, epochs: dict[str, int] | None = None) -> Copied:
    """Copy `checkpoint` (path or ``file:`` URI) to `target`, which must not exist.

    Args:
        checkpoint: A job's checkpoint location; its job may run.
        target: Where the savepoint will be; it appears there whole or not at all.
        epochs: Query → retained epoch to go back to; default: the newest committed.

    Raises:
        SpecError: A location is not a mounted folder, or `target` exists.
        SavepointMissing: There is no checkpoint, or no such epoch in it any more.
        CheckpointUnwritable: `target` cannot be written.
    """
    source, place = _folder(checkpoint), _folder(target)
    if place.exists():
        raise SpecError(f"{target} is there already.", hint="choose another name for the savepoint.")
    queries = sorted(one.name for one in source.iterdir() if (one / "metadata").is_file()) if source.is_dir() else []
    if not queries:
        raise SavepointMissing(f"{checkpoint} holds no checkpoint of a job.")
    links = source / f".savepoint-{uuid.uuid4().hex[:12]}"
    draft = place.with_name(f".{place.name}.{uuid.uuid4().hex[:8]}")
    try:
        held = {query: _link(source / query, links / query, (epochs or {}).get(query)) for query in queries}
        size = sum(_copy(links / query, draft / query) for query in queries)
        (draft / MANIFEST).write_text(json.dumps({"epochs": held, "size_bytes": size}))
        _sync(draft)
        place.parent.mkdir(parents=True, exist_ok=True)
        draft.rename(place)
    except OSError as error:
        raise CheckpointUnwritable(f"The savepoint {target} cannot be written: {error}.") from error
    finally:
        shutil.rmtree(links, ignore_errors=True)
        shutil.rmtree(draft, ignore_errors=True)
    return Copied(held, size)


def read_savepoint(location: str) -> Copied:
    """What a savepoint holds.

    Raises:
        SavepointMissing: There is none.
    """
    try:
        found = json.loads((_folder(location) / MANIFEST).read_text())
        return Copied(found["epochs"], found["size_bytes"])
    except (OSError, ValueError, KeyError) as error:
        raise SavepointMissing(f"{location} holds no savepoint: {error}.") from error


def restore_savepoint(location: str, checkpoint: str) -> Copied:
    """Copy a savepoint to `checkpoint`, where a job is then started; harmless when repeated.

    Raises:
        SavepointMissing: There is none.
        CheckpointUnwritable: `checkpoint` cannot be written, or something else is there.
    """
    source, place = _folder(location), _folder(checkpoint)
    found = read_savepoint(location)
    if place.exists():
        if (place / MANIFEST).is_file():
            return found  # restored already; the job may have gone on from it
        raise CheckpointUnwritable(
            f"{checkpoint} is there already and did not come from a savepoint.", hint="choose another checkpoint."
        )
    draft = place.with_name(f".{place.name}.{uuid.uuid4().hex[:8]}")
    try:
        _copy(source, draft)
        _sync(draft)
        draft.rename(place)
    except OSError as error:
        raise CheckpointUnwritable(f"{checkpoint} cannot be written: {error}.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return found


def delete_savepoint(location: str) -> None:
    """Remove a savepoint; nothing else is ever removed. Harmless when repeated.

    Raises:
        SavepointMissing: Something is there that is no savepoint.
        CheckpointUnwritable: It cannot be removed.
    """
    place = _folder(location)
    if not place.exists():
        return
    read_savepoint(location)
    try:
        doomed = place.with_name(f".{place.name}.{uuid.uuid4().hex[:8]}")
        place.rename(doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        raise CheckpointUnwritable(f"The savepoint {location} cannot be removed: {error}.") from error


def _folder(location: str) -> Path:
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        raise SpecError(
            f"{location} is not a mounted folder: savepoints are copies of files.",
            hint="name a path that every host has mounted; for object stores use their own snapshots.",
        )
    return Path(unquote(parts.path) if parts.scheme else location).absolute()


def _link(source: Path, target: Path, wanted: int | None) -> int:
    """Link one query's files of all epochs up to the newest committed one, or `wanted`; returns that epoch."""
    committed = _epochs(source / "commits")
    if wanted is not None and wanted not in committed:
        raise SavepointMissing(
            f"Epoch {wanted} of {source.name} is not retained; {committed[:1]} to {committed[-1:]} are."
        )
    newest = wanted if wanted is not None else max(committed, default=-1)
    target.mkdir(parents=True)
    _link_file(source / "metadata", target / "metadata")
    for log in _LOGS:
        (target / log).mkdir()
        for epoch in _epochs(source / log):
            if epoch <= newest:
                _link_file(source / log / str(epoch), target / log / str(epoch))
    for folder in ("sources", "state"):
        for file in _files(source / folder):
            version = _VERSIONED.fullmatch(file.name)
            # The state that epoch e leaves behind is version e + 1.
            if version is None or int(version[1]) <= newest + 1:
                _link_file(file, target / file.relative_to(source))
    missing = [log for log in _LOGS if newest >= 0 and not (target / log / str(newest)).is_file()]
    if missing:
        raise SavepointMissing(f"Epoch {newest} of {source.name} was removed while it was copied; try again.")
    return newest


def _epochs(log: Path) -> list[int]:
    return sorted(int(one.name) for one in log.iterdir() if one.name.isdigit()) if log.is_dir() else []


def _files(folder: Path) -> Iterator[Path]:
    for at, _, names in os.walk(folder):
        # One that is being written starts with a dot.
        yield from (Path(at, name) for name in names if not name.startswith("."))


def _link_file(source: Path, target: Path) -> None:
    """A file and Hadoop's checksum of it; neither if it was removed meanwhile, with an epoch that is not retained."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for one, place in ((source, target), (_checksum(source), _checksum(target))):
        with contextlib.suppress(FileNotFoundError):
            try:
                os.link(one, place)
            except FileNotFoundError:
                raise
            except OSError:
                shutil.copyfile(one, place)  # a file system without links


def _checksum(file: Path) -> Path:
    return file.with_name(f".{file.name}.crc")


def _copy(source: Path, target: Path) -> int:
    size = 0
    for file in _files(source):
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
        if _checksum(file).exists():
            shutil.copyfile(_checksum(file), _checksum(place))
        size += place.stat().st_size
    return size


def _sync(folder: Path) -> None:
    """To the disk: a savepoint is made for bad days."""
    for at, _, names in os.walk(folder):
        for name in (*names, "."):
            handle = os.open(Path(at, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
