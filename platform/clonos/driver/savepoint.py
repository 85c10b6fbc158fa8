"""Savepoints: copies of a job's checkpoint at finished epochs, taken while the job runs.

Spark writes every file of a checkpoint once, under a unique name, and removes it some hundred epochs later. On a
mounted file system the files of an epoch are first linked into a directory beside them, which takes milliseconds, and
then copied from there, however long that takes. HDFS and S3 have no links: a copy that took too long is refused. It is
complete if the epoch's log entries are still there at its end, because Spark removes state no earlier than these.
Unlike the barrier snapshots of Flink (Carbone et al., "Lightweight Asynchronous Snapshots for Distributed Dataflows",
2015) this needs no marker in the stream: the end of a micro-batch is already a consistent point.

A savepoint has the layout of a checkpoint, and a manifest ``savepoint.json``, which is written last. A folder that is
being written has a file ``.draft``, and another name where a rename is a single step; on S3 it is not.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

from clonos.driver.checkpoint_owner import (
    OWNER_FILE,
    JobOwner,
    check_above,
    check_checkpoint,
    check_savepoint,
    owner_text,
)
from clonos.errors import CheckpointUnwritable, SavepointMissing, SpecError
from clonos.spark.stored_files import Folder

MANIFEST: Final = "savepoint.json"
_LOGS: Final = ("offsets", "commits")
_VERSIONED: Final = re.compile(r"(\d+)(?:_[^.]*)?\.(?:changelog|zip|delta|snapshot)$")
_DRAFT: Final = ".draft"
_MOVED: Final = ".moved"
_Kind = TypeVar("_Kind", bound=Folder)


class Copied(NamedTuple):
    """Description of the content of a savepoint."""

    epochs: dict[str, int]  # query → newest committed epoch in the savepoint; -1 if none
    size_bytes: int  # size of all files


def take(
    source: _Kind,
    target: _Kind,
    *,
    owner: JobOwner,
    epochs: Mapping[str, int] | None = None,
    as_checkpoint: bool = False,
) -> Copied:
    """Copy a checkpoint to a folder that must not exist.

    Args:
        source: A job's checkpoint; its job may run.
        target: The savepoint; it is complete, or not a savepoint.
        owner: The job.
        epochs: Query → retained epoch to copy; default: the newest committed epoch.
        as_checkpoint: The copy becomes the checkpoint of the job, and is not a savepoint.

    Raises:
        SpecError: The target exists.
        CheckpointForeign: The checkpoint belongs to another job or subject, or `target` is inside of another folder of
            a job.
        CheckpointDamaged: The checkpoint has a link or another file that is not regular.
        SavepointMissing: There is no checkpoint, or it no longer holds an epoch of `epochs`.
        CheckpointUnwritable: The target cannot be written.
    """
    try:
        if _is_taken(target):
            raise SpecError(f"{target.location} already exists.", hint="choose another name for the savepoint.")
        check_checkpoint(source.read_text(OWNER_FILE), owner, source.location)
        check_above(target.texts_above(OWNER_FILE), owner, target.location)
        files = source.files()
        queries = _queries(files)
        if not queries:
            raise SavepointMissing(f"{source.location} holds no checkpoint of a job.")
        copied: dict[str, int] = {}
        names: list[str] = []
        for query in queries:
            copied[query], selected = files_of_epoch(files, query, (epochs or {}).get(query))
            names += selected
        with source.held(names) as held, _draft(target) as draft:
            held.copy(draft, names)
            for query, newest in copied.items():
                if newest >= 0 and not all(held.exists(f"{query}/{log}/{newest}") for log in _LOGS):
                    raise SavepointMissing(
                        f"Epoch {newest} of {query} was removed while it was being copied; try again."
                    )
            content = Copied(copied, sum(files[name] for name in names))
            _complete(draft, owner_text(owner, savepoint=not as_checkpoint), content)
    except OSError as error:
        raise CheckpointUnwritable(f"The savepoint {target.location} cannot be written: {error}.") from error
    return content


def read(location: Folder) -> Copied:
    """Read the manifest of a savepoint: the newest epoch of each query, and the size in bytes.

    Raises:
        SavepointMissing: There is no savepoint.
    """
    try:
        text = location.read_text(MANIFEST)
        if text is None:
            raise SavepointMissing(f"{location.location} holds no savepoint.")
        manifest = json.loads(text)
        return Copied(manifest["epochs"], manifest["size_bytes"])
    except (OSError, ValueError, KeyError) as error:
        raise SavepointMissing(f"{location.location} holds no savepoint: {error}.") from error


def check_restore(location: _Kind, checkpoint: _Kind, owner: JobOwner) -> None:
    """Refuse to start `owner` from a folder, or to restore into `checkpoint`, if one is another's.

    Raises:
        CheckpointForeign: `location` is not a savepoint of the owner, or `checkpoint` is inside of another folder.
    """
    check_savepoint(location.read_text(OWNER_FILE), owner, location.location)
    check_above(checkpoint.texts_above(OWNER_FILE), owner, checkpoint.location)


def restore(location: _Kind, checkpoint: _Kind, owner: JobOwner) -> Copied:
    """Copy a savepoint to the folder `checkpoint`, from which a job then starts.

    A repeated call has no further effect.

    Raises:
        SavepointMissing: There is no savepoint at `location`.
        CheckpointForeign: The savepoint belongs to another subject, or `checkpoint` is inside of another folder.
        CheckpointUnwritable: `checkpoint` cannot be written, or exists and is not a restored savepoint.
    """
    content = read(location)
    try:
        check_restore(location, checkpoint, owner)
        if checkpoint.exists(MANIFEST):
            return content  # restored by an earlier call; the job may already have continued from it
        if _is_taken(checkpoint):
            raise CheckpointUnwritable(
                f"{checkpoint.location} already exists and did not come from a savepoint.",
                hint="choose another checkpoint.",
            )
        with _draft(checkpoint) as draft:
            names = [name for name in location.files() if name not in (MANIFEST, OWNER_FILE) and not _is_hidden(name)]
            missing = location.copy(draft, names)
            if missing:
                raise SavepointMissing(f"{location.location} lost {missing[0]} while it was being copied.")
            _complete(draft, owner_text(owner), content)
    except OSError as error:
        raise CheckpointUnwritable(f"{checkpoint.location} cannot be written: {error}.") from error
    return content


def delete(location: Folder, owner: JobOwner) -> None:
    """Remove a savepoint. A repeated call has no further effect.

    Raises:
        SavepointMissing: `location` exists and is not a savepoint; it is not removed.
        CheckpointForeign: It belongs to another subject, or is a checkpoint.
        CheckpointUnwritable: The savepoint cannot be removed.
    """
    try:
        if not location.exists():
            return
        read(location)
        check_savepoint(location.read_text(OWNER_FILE), owner, location.location)
        for query in {name.partition("/")[0] for name in location.files() if "/" in name}:
            location.delete(query)
        location.delete()  # the manifest last, so that a repeated call finds it
    except OSError as error:
        raise CheckpointUnwritable(f"The savepoint {location.location} cannot be removed: {error}.") from error


def move_aside(folder: _Kind, previous: _Kind) -> None:
    """Move a checkpoint to `previous`, where it has the file ``.moved`` at the end. A repeated call continues."""
    if not previous.exists(_MOVED):
        if folder.exists():
            if folder.is_store_of_objects or previous.exists():
                folder.copy(previous, list(folder.files()))
                folder.delete(MANIFEST)  # the rest of a checkpoint is not taken for a restored savepoint
            else:
                folder.rename(previous)
        previous.write_text(_MOVED, "")
    if not folder.exists(MANIFEST):
        folder.delete()


def is_moved(previous: Folder) -> bool:
    """Whether a checkpoint was moved to `previous`, or there was none to move."""
    # Where a rename is one step, it may have happened without the file: before a crash, or in an earlier version.
    return previous.exists(_MOVED) or (not previous.is_store_of_objects and previous.exists())


def has_checkpoint(previous: Folder) -> bool:
    """Whether there was a checkpoint to move."""
    return any(name != _MOVED for name in previous.files())


def empty(previous: Folder) -> None:
    """Remove what a moved checkpoint holds; the file that shows the move stays."""
    for name in {name.partition("/")[0] for name in previous.files()} - {_MOVED}:
        previous.delete(name)


def retained_epochs(checkpoint: Folder, epoch: int | None) -> dict[str, int]:
    """Query → the epoch, which each query of a checkpoint must still have.

    Raises:
        SavepointMissing: A query does not have it.
    """
    files = checkpoint.files()
    queries = _queries(files)
    if epoch is None or not queries or not all(f"{query}/commits/{epoch}" in files for query in queries):
        raise SavepointMissing(f"The checkpoint {checkpoint.location} holds no epoch {epoch} (any more).")
    return dict.fromkeys(queries, epoch)


def _queries(files: Collection[str]) -> list[str]:
    folders = (name.removesuffix("/metadata") for name in files if name.endswith("/metadata"))
    return sorted(folder for folder in folders if "/" not in folder)


def files_of_epoch(files: Mapping[str, int], query: str, epoch: int | None) -> tuple[int, list[str]]:
    """Return the epoch to copy of one query, default the newest committed one, and the files that it needs.

    Args:
        files: Path in the checkpoint → size, of all files.
        query: Name of the query.
        epoch: A committed epoch.

    Raises:
        SavepointMissing: The checkpoint does not have the epoch.
    """
    own = [name for name in files if name.startswith(f"{query}/") and not _is_hidden(name)]
    committed = sorted(int(name) for path in own if (name := path.removeprefix(f"{query}/commits/")).isdigit())
    if epoch is not None and epoch not in committed:
        raise SavepointMissing(f"Epoch {epoch} of {query} is not retained; {committed[:1]} to {committed[-1:]} are.")
    newest = epoch if epoch is not None else max(committed, default=-1)
    return newest, [name for name in own if _belongs(name.removeprefix(f"{query}/"), newest)]


def _belongs(name: str, newest: int) -> bool:
    """Whether a file of a query's checkpoint belongs to the epochs up to `newest`."""
    folder, _, rest = name.partition("/")
    if folder in _LOGS:
        return rest.isdigit() and int(rest) <= newest
    if folder in ("sources", "state"):
        version = _VERSIONED.fullmatch(rest.rpartition("/")[2].removesuffix(".crc"))
        return version is None or int(version[1]) <= newest + 1  # the state after epoch e is version e + 1
    return name == "metadata"


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _is_taken(folder: Folder) -> bool:
    """Whether a folder exists that is not the rest of an interrupted copy."""
    return folder.exists() and (folder.exists(MANIFEST) or not folder.exists(_DRAFT))


@contextlib.contextmanager
def _draft(folder: _Kind) -> Iterator[_Kind]:
    """Yield a folder to write, which becomes `folder` at the end of the context. After an error there is none.

    Where a rename is one step, it is another folder until then: a job that a user starts must not find a part of its
    checkpoint. On S3 the file ``.draft`` marks the rest of a copy that a crash ended.
    """
    folder.delete()
    name = folder.location.rpartition("/")[2]
    beside = f"{folder.location.removesuffix(name)}.{name}.{secrets.token_hex(4)}"
    draft = folder if folder.is_store_of_objects else folder.at(beside)
    try:
        draft.write_text(_DRAFT, "")
        yield draft
        draft.delete(_DRAFT)
        draft.sync()
        if draft is not folder:
            draft.rename(folder)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.delete()
        raise


def _complete(folder: Folder, owner: str, content: Copied) -> None:
    folder.write_text(OWNER_FILE, owner)
    folder.sync()  # the manifest must not survive a crash of the host without the files
    folder.write_text(MANIFEST, json.dumps(content._asdict()))
