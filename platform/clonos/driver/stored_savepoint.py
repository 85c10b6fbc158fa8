"""Savepoints on HDFS, S3 or another file system of Hadoop: the checkpoint, the copy or both.

There are no links there, so files are copied while the job runs, and a copy that took too long is refused: it is
complete if the epoch's log entries are still there at its end, because Spark removes state no earlier than these.

A rename is not a single step on S3. A folder that is being written has a file ``.draft``; the manifest is written last.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Final

from clonos.driver.checkpoint_owner import (
    OWNER_FILE,
    JobOwner,
    check_above,
    check_checkpoint,
    check_savepoint,
    owner_text,
)
from clonos.driver.savepoint import LOGS, MANIFEST, VERSIONED, Copied
from clonos.errors import CheckpointUnwritable, SavepointMissing, SpecError
from clonos.spark.stored_files import StoredFolder

_DRAFT: Final = ".draft"
_MOVED: Final = ".moved"


def take(
    source: StoredFolder,
    target: StoredFolder,
    *,
    owner: JobOwner,
    epochs: Mapping[str, int] | None = None,
    as_checkpoint: bool = False,
) -> Copied:
    """As `clonos.driver.savepoint.take_savepoint`."""
    try:
        if _is_taken(target):
            raise SpecError(f"{target.location} already exists.", hint="choose another name for the savepoint.")
        check_checkpoint(source.read_text(OWNER_FILE), owner, source.location)
        check_above(target.texts_above(OWNER_FILE), owner, target.location)
        files = source.files()
        queries = sorted(name.removesuffix("/metadata") for name in files if name.endswith("/metadata"))
        queries = [query for query in queries if "/" not in query]
        if not queries:
            raise SavepointMissing(f"{source.location} holds no checkpoint of a job.")
        copied: dict[str, int] = {}
        names: list[str] = []
        for query in queries:
            copied[query], selected = files_of_epoch(files, query, (epochs or {}).get(query))
            names += selected
        with _draft(target):
            source.copy(target, names)
            for query, newest in copied.items():
                logged = all(source.exists(f"{query}/{log}/{newest}") for log in LOGS)
                if newest >= 0 and not logged:
                    raise SavepointMissing(
                        f"Epoch {newest} of {query} was removed while it was being copied; try again."
                    )
            target.write_text(OWNER_FILE, owner_text(owner, savepoint=not as_checkpoint))
            content = Copied(copied, sum(files[name] for name in names))
            target.write_text(MANIFEST, json.dumps(content._asdict()))
    except OSError as error:
        raise CheckpointUnwritable(f"The savepoint {target.location} cannot be written: {error}.") from error
    return content


def read(location: StoredFolder) -> Copied:
    """As `clonos.driver.savepoint.read_savepoint`."""
    try:
        text = location.read_text(MANIFEST)
        if text is None:
            raise SavepointMissing(f"{location.location} holds no savepoint.")
        manifest = json.loads(text)
        return Copied(manifest["epochs"], manifest["size_bytes"])
    except (OSError, ValueError, KeyError) as error:
        raise SavepointMissing(f"{location.location} holds no savepoint: {error}.") from error


def check_restore(location: StoredFolder, checkpoint: StoredFolder, owner: JobOwner) -> None:
    """As `clonos.driver.savepoint.check_restore`."""
    check_savepoint(location.read_text(OWNER_FILE), owner, location.location)
    check_above(checkpoint.texts_above(OWNER_FILE), owner, checkpoint.location)


def restore(location: StoredFolder, checkpoint: StoredFolder, owner: JobOwner) -> Copied:
    """As `clonos.driver.savepoint.restore_savepoint`."""
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
        with _draft(checkpoint):
            names = [name for name in location.files() if name not in (MANIFEST, OWNER_FILE) and not _is_hidden(name)]
            missing = location.copy(checkpoint, names)
            if missing:
                raise SavepointMissing(f"{location.location} lost {missing[0]} while it was being copied.")
            checkpoint.write_text(OWNER_FILE, owner_text(owner))
            checkpoint.write_text(MANIFEST, json.dumps(content._asdict()))
    except OSError as error:
        raise CheckpointUnwritable(f"{checkpoint.location} cannot be written: {error}.") from error
    return content


def delete(location: StoredFolder, owner: JobOwner) -> None:
    """As `clonos.driver.savepoint.delete_savepoint`."""
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


def move_aside(folder: StoredFolder, previous: StoredFolder) -> None:
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


def is_moved(previous: StoredFolder) -> bool:
    """Whether a checkpoint was moved to `previous`, or there was none to move."""
    return previous.exists(_MOVED)


def has_checkpoint(previous: StoredFolder) -> bool:
    """Whether there was a checkpoint to move."""
    return any(name != _MOVED for name in previous.files())


def empty(previous: StoredFolder) -> None:
    """Remove what a moved checkpoint holds; the file that shows the move stays."""
    for name in {name.partition("/")[0] for name in previous.files()} - {_MOVED}:
        previous.delete(name)


def retained_epochs(checkpoint: StoredFolder, epoch: int | None) -> dict[str, int]:
    """Query → the epoch, which each query of a checkpoint must still have.

    Raises:
        SavepointMissing: A query does not have it.
    """
    files = checkpoint.files()
    metadata = (name.removesuffix("/metadata") for name in files if name.endswith("/metadata"))
    queries = [query for query in metadata if "/" not in query]
    if epoch is None or not queries or not all(f"{query}/commits/{epoch}" in files for query in queries):
        raise SavepointMissing(f"The checkpoint {checkpoint.location} holds no epoch {epoch} (any more).")
    return dict.fromkeys(queries, epoch)


def files_of_epoch(files: Mapping[str, int], query: str, epoch: int | None) -> tuple[int, list[str]]:
    """The epoch to copy of one query, default the newest committed one, and the files that it needs.

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
    if folder in LOGS:
        return rest.isdigit() and int(rest) <= newest
    if folder in ("sources", "state"):
        version = VERSIONED.fullmatch(rest.rpartition("/")[2].removesuffix(".crc"))
        return version is None or int(version[1]) <= newest + 1  # the state after epoch e is version e + 1
    return name == "metadata"


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _is_taken(folder: StoredFolder) -> bool:
    """Whether a folder exists that is not the rest of an interrupted copy."""
    return folder.exists() and (folder.exists(MANIFEST) or not folder.exists(_DRAFT))


@contextlib.contextmanager
def _draft(folder: StoredFolder) -> Iterator[None]:
    """Mark a folder as incomplete inside the context, and remove it after an error."""
    folder.delete()
    folder.write_text(_DRAFT, "")
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            folder.delete()
        raise
    folder.delete(_DRAFT)
