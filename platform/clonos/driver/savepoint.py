"""Savepoints: copies of a job's checkpoint at finished epochs, taken while the job runs.

Spark writes every file of a checkpoint once, under a unique name, and removes it some hundred epochs later. So the
files of the newest committed epoch are first linked into a directory beside them, which takes milliseconds. They are
then copied from there, however long that takes. Unlike the barrier snapshots of Flink (Carbone et al., "Lightweight
Asynchronous Snapshots for Distributed Dataflows", 2015) this needs no marker in the stream: the end of a micro-batch
is already a consistent point.

A savepoint has the layout of a checkpoint, and a manifest ``savepoint.json``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from clonos.driver.checkpoint_owner import (
    OWNER_FILE,
    JobOwner,
    check_above,
    check_checkpoint,
    check_savepoint,
    owner_text,
    text_in,
    texts_above,
)
from clonos.errors import CheckpointDamaged, CheckpointUnwritable, SavepointMissing, SpecError

MANIFEST: Final = "savepoint.json"
LOGS: Final = ("offsets", "commits")
VERSIONED: Final = re.compile(r"(\d+)(?:_[^.]*)?\.(?:changelog|zip|delta|snapshot)$")


class Copied(NamedTuple):
    """Description of the content of a savepoint."""

    epochs: dict[str, int]  # query → newest committed epoch in the savepoint; -1 if none
    size_bytes: int  # size of all files


def take_savepoint(
    checkpoint: str,
    target: str,
    *,
    owner: JobOwner,
    epochs: dict[str, int] | None = None,
    as_checkpoint: bool = False,
) -> Copied:
    """Copy `checkpoint` (path or ``file:`` URI) to `target`, which must not exist.

    Args:
        checkpoint: A job's checkpoint location; its job may run.
        target: Location of the savepoint; it appears there complete or not at all.
        owner: The job.
        epochs: Query → retained epoch to copy; default: the newest committed epoch.
        as_checkpoint: The copy becomes the checkpoint of the job, and is not a savepoint.

    Raises:
        SpecError: A location is not a mounted directory, or `target` exists.
        CheckpointForeign: The checkpoint belongs to another job or subject, or `target` is inside of another folder of
            a job.
        CheckpointDamaged: The checkpoint has a link or another file that is not regular.
        SavepointMissing: There is no checkpoint, or it no longer holds an epoch of `epochs`.
        CheckpointUnwritable: `target` cannot be written.
    """
    source, destination = _folder(checkpoint), _folder(target)
    if destination.exists():
        raise SpecError(f"{target} already exists.", hint="choose another name for the savepoint.")
    check_checkpoint(text_in(source), owner, checkpoint)
    check_above(texts_above(destination), owner, target)
    queries = (
        sorted(entry.name for entry in source.iterdir() if (entry / "metadata").is_file()) if source.is_dir() else []
    )
    if not queries:
        raise SavepointMissing(f"{checkpoint} holds no checkpoint of a job.")
    links = source / f".savepoint-{uuid.uuid4().hex[:12]}"
    draft = destination.with_name(f".{destination.name}.{uuid.uuid4().hex[:8]}")
    try:
        copied = {query: _link(source / query, links / query, (epochs or {}).get(query)) for query in queries}
        size = sum(_copy(links / query, draft / query) for query in queries)
        (draft / OWNER_FILE).write_text(owner_text(owner, savepoint=not as_checkpoint))
        (draft / MANIFEST).write_text(json.dumps({"epochs": copied, "size_bytes": size}))
        _sync(draft)
        destination.parent.mkdir(parents=True, exist_ok=True)
        draft.rename(destination)
    except OSError as error:
        raise CheckpointUnwritable(f"The savepoint {target} cannot be written: {error}.") from error
    finally:
        shutil.rmtree(links, ignore_errors=True)
        shutil.rmtree(draft, ignore_errors=True)
    return Copied(copied, size)


def read_savepoint(location: str) -> Copied:
    """Read the manifest of the savepoint at `location`: the newest epoch of each query, and the size in bytes.

    Raises:
        SavepointMissing: There is no savepoint.
    """
    try:
        manifest = json.loads((_folder(location) / MANIFEST).read_text())
        return Copied(manifest["epochs"], manifest["size_bytes"])
    except (OSError, ValueError, KeyError) as error:
        raise SavepointMissing(f"{location} holds no savepoint: {error}.") from error


def check_restore(location: str, checkpoint: str, owner: JobOwner) -> None:
    """Refuse to start `owner` from the folder at `location`, or to restore into `checkpoint`, if one is another's.

    Raises:
        CheckpointForeign: `location` is not a savepoint of the owner, or `checkpoint` is inside of another folder.
    """
    check_savepoint(text_in(_folder(location)), owner, location)
    check_above(texts_above(_folder(checkpoint)), owner, checkpoint)


def restore_savepoint(location: str, checkpoint: str, owner: JobOwner) -> Copied:
    """Copy a savepoint to the location `checkpoint`, from which a job then starts.

    A repeated call has no further effect.

    Raises:
        SavepointMissing: There is no savepoint at `location`.
        CheckpointForeign: The savepoint belongs to another subject, or `checkpoint` is inside of another folder.
        CheckpointUnwritable: `checkpoint` cannot be written, or exists and is not a restored savepoint.
    """
    source, destination = _folder(location), _folder(checkpoint)
    content = read_savepoint(location)
    check_restore(location, checkpoint, owner)
    if destination.exists():
        if (destination / MANIFEST).is_file():
            return content  # restored by an earlier call; the job may already have continued from it
        raise CheckpointUnwritable(
            f"{checkpoint} already exists and did not come from a savepoint.", hint="choose another checkpoint."
        )
    draft = destination.with_name(f".{destination.name}.{uuid.uuid4().hex[:8]}")
    try:
        _copy(source, draft)
        (draft / OWNER_FILE).write_text(owner_text(owner))
        _sync(draft)
        draft.rename(destination)
    except OSError as error:
        raise CheckpointUnwritable(f"{checkpoint} cannot be written: {error}.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return content


def delete_savepoint(location: str, owner: JobOwner) -> None:
    """Remove a savepoint. A repeated call has no further effect.

    Raises:
        SavepointMissing: `location` exists and is not a savepoint; it is not removed.
        CheckpointForeign: It belongs to another subject, or is a checkpoint.
        CheckpointUnwritable: The savepoint cannot be removed.
    """
    folder = _folder(location)
    if not folder.exists():
        return
    read_savepoint(location)
    check_savepoint(text_in(folder), owner, location)
    try:
        removed = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
        folder.rename(removed)
        shutil.rmtree(removed)
    except OSError as error:
        raise CheckpointUnwritable(f"The savepoint {location} cannot be removed: {error}.") from error


def _folder(location: str) -> Path:
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        raise SpecError(
            f"{location} is not a mounted directory: savepoints are copies of files.",
            hint="name a path that every host has mounted.",
        )
    return Path(unquote(parts.path) if parts.scheme else location).absolute()


def _link(source: Path, target: Path, epoch: int | None) -> int:
    """Link one query's files of all epochs up to `epoch`, default the newest committed one; returns that epoch."""
    committed = _epochs(source / "commits")
    if epoch is not None and epoch not in committed:
        raise SavepointMissing(
            f"Epoch {epoch} of {source.name} is not retained; {committed[:1]} to {committed[-1:]} are."
        )
    newest = epoch if epoch is not None else max(committed, default=-1)
    target.mkdir(parents=True)
    _link_file(source / "metadata", target / "metadata")
    for log in LOGS:
        (target / log).mkdir()
        for logged in _epochs(source / log):
            if logged <= newest:
                _link_file(source / log / str(logged), target / log / str(logged))
    for folder in ("sources", "state"):
        for file in _files(source / folder):
            version = VERSIONED.fullmatch(file.name)
            # The state after epoch e is version e + 1.
            if version is None or int(version[1]) <= newest + 1:
                _link_file(file, target / file.relative_to(source))
    missing = [log for log in LOGS if newest >= 0 and not (target / log / str(newest)).is_file()]
    if missing:
        raise SavepointMissing(f"Epoch {newest} of {source.name} was removed while it was being copied; try again.")
    return newest


def _epochs(log: Path) -> list[int]:
    return sorted(int(file.name) for file in log.iterdir() if file.name.isdigit()) if log.is_dir() else []


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_symlink():
        raise _not_regular(folder)
    for parent, folders, names in os.walk(folder):
        for name in folders:
            if Path(parent, name).is_symlink():
                raise _not_regular(Path(parent, name))
        # The name of a file that is being written starts with a dot.
        yield from (Path(parent, name) for name in names if not name.startswith("."))


def _link_file(source: Path, target: Path) -> None:
    """Link a file and Hadoop's checksum of it; neither if Spark has removed the file with its epoch."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for file, link in ((source, target), (_checksum(source), _checksum(target))):
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(file.lstat().st_mode):
                raise _not_regular(file)
            try:
                os.link(file, link, follow_symlinks=False)
            except FileNotFoundError:
                raise
            except OSError:
                _copy_file(file, link)  # a file system without links


def _checksum(file: Path) -> Path:
    return file.with_name(f".{file.name}.crc")


def _copy(source: Path, target: Path) -> int:
    size = 0
    for file in _files(source):
        if file == source / OWNER_FILE:
            continue  # the copy has an owner file of its own
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        _copy_file(file, copy)
        if _checksum(file).exists():
            _copy_file(_checksum(file), _checksum(copy))
        size += copy.stat().st_size
    return size


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
        with target.open("xb") as copy:
            shutil.copyfileobj(content, copy)


def _not_regular(file: Path) -> CheckpointDamaged:
    return CheckpointDamaged(f"{file} is not a regular file or folder.", hint="remove it: Spark writes no links.")


def _sync(folder: Path) -> None:
    """Sync all files and directories to the disk: a savepoint must survive a crash of the host."""
    for parent, _, names in os.walk(folder):
        for name in (*names, "."):
            handle = os.open(Path(parent, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
