"""Restores a job's checkpoint to an older point, then becomes the job's driver.

``python -m clonos.agent.restoring SPEC EVENTS LOCATION EPOCH REQUEST_KEY PUBLISH_AGAIN COMMAND…`` calls `main`. The
restore runs in the driver's own process, with the driver's user, limits, log and exit code. It is executed once for
each request key; a repeated request continues with the restored checkpoint.

The checkpoint that the newest request replaced stays, as a way back. Of older requests only an empty directory remains.
It shows each driver, also one on a host that was considered lost, that the request was executed.
"""

from __future__ import annotations

import glob
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from clonos.driver import stored_savepoint
from clonos.driver.checkpoint_owner import OWNER_FILE, JobOwner, check_checkpoint, text_in
from clonos.driver.driver import default_checkpoint
from clonos.driver.savepoint import MANIFEST, check_restore, read_savepoint, restore_savepoint, take_savepoint
from clonos.errors import CheckpointUnwritable, ClonosError, SavepointMissing, SpecError, WouldPublishAgain
from clonos.jobs.cluster import ClusterSpec
from clonos.jobs.locations import is_path, locate
from clonos.jobs.spec import JobSpec, read_spec
from clonos.log.claiming import require_own
from clonos.log.control import ControlState, known_control
from clonos.log.platform_identity import Platform
from clonos.settings import Settings
from clonos.spark.file_systems import file_systems
from clonos.spark.stored_files import StoredFolder
from clonos.telemetry.driver_events import Failed
from clonos.telemetry.events import Events

_NO_EPOCH: Final = "-"
_PUBLISH_AGAIN: Final = "publish-again"
_PREVIOUS_SUFFIX: Final = ".before-"
_CLUSTER: Final = "--cluster"
_OWNER: Final = "--owner"
_PLATFORM: Final = "--platform"
_ADOPT: Final = "--adopt"


def _allow_all(epochs: Mapping[str, int]) -> None:
    """Allow a restore to any epoch."""


def restore(
    checkpoint: str,
    location: str,
    epoch: int | None,
    request_key: str,
    allow: Callable[[Mapping[str, int]], None] = _allow_all,
    *,
    owner: JobOwner,
) -> None:
    """Restore a checkpoint. The replaced one stays beside it, as ``….before-<request_key>``, until the next restore.

    Args:
        checkpoint: Location of the job's checkpoint.
        location: A savepoint; or the checkpoint itself, to return to one of its epochs.
        epoch: Epoch to return to; None with a savepoint.
        request_key: Idempotency key of the request.
        allow: Called before any change with the epochs to restore (query → epoch); raises if the job must not return to
            them.
        owner: The job, with the subject of the savepoint among its subjects.

    Raises:
        CheckpointForeign: The checkpoint belongs to another job or subject, or the savepoint to another subject.
        JobForeign: The checkpoint belongs to another platform.
        SpecError: The checkpoint is not a mounted folder.
        SavepointMissing: There is no such savepoint, or the checkpoint no longer has the epoch.
        CheckpointUnwritable: The checkpoint cannot be written.
        WouldPublishAgain: Raised by `allow`.
    """
    target = _folder(checkpoint)
    check_checkpoint(text_in(target), owner, checkpoint)
    previous = target.with_name(f"{target.name}{_PREVIOUS_SUFFIX}{request_key}")
    if previous.exists() and (target / MANIFEST).is_file():
        return  # executed already; the job may have continued from it
    from_itself = _folder(location) == target
    if from_itself:
        epochs = _retained_epochs(previous if previous.exists() else target, epoch)
    else:
        epochs = read_savepoint(location).epochs
        check_restore(location, checkpoint, owner)
    allow(epochs)
    try:
        if not previous.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():
                target.rename(previous)
            else:
                previous.mkdir()
    except OSError as error:
        raise CheckpointUnwritable(f"The checkpoint {checkpoint} cannot be moved aside: {error}.") from error
    if from_itself:
        take_savepoint(str(previous), str(target), owner=owner, epochs=epochs, as_checkpoint=True)
    else:
        restore_savepoint(location, str(target), owner)
    _empty_older(target, previous)


def restore_stored(
    target: StoredFolder,
    location: StoredFolder,
    epoch: int | None,
    request_key: str,
    allow: Callable[[Mapping[str, int]], None] = _allow_all,
    *,
    owner: JobOwner,
) -> None:
    """As `restore`, if the checkpoint or the savepoint is on HDFS, S3 or another file system of Hadoop.

    On S3 no rename moves the checkpoint aside in one step. Each step is repeated after a crash.
    """
    try:
        check_checkpoint(target.read_text(OWNER_FILE), owner, target.location)
        previous = target.at(f"{target.location}{_PREVIOUS_SUFFIX}{request_key}")
        moved = stored_savepoint.is_moved(previous)
        if moved and target.exists(MANIFEST):
            return  # executed already; the job may have continued from it
        from_itself = locate(location.location) == locate(target.location)
        if from_itself:
            epochs = stored_savepoint.retained_epochs(previous if moved else target, epoch)
        else:
            epochs = stored_savepoint.read(location).epochs
            stored_savepoint.check_restore(location, target, owner)
        allow(epochs)
        stored_savepoint.move_aside(target, previous)
        if from_itself:
            stored_savepoint.take(previous, target, owner=owner, epochs=epochs, as_checkpoint=True)
        else:
            stored_savepoint.restore(location, target, owner)
        if stored_savepoint.has_checkpoint(previous):  # otherwise the older one is still the way back
            for older in target.siblings(_PREVIOUS_SUFFIX):
                if older.location != previous.location:
                    stored_savepoint.empty(older)
    except OSError as error:
        raise CheckpointUnwritable(f"The checkpoint {target.location} cannot be replaced: {error}.") from error


def require_unpublished(state: ControlState, epochs: Mapping[str, int]) -> None:
    """Raise `WouldPublishAgain` if the log has epochs after `epochs` (query → newest epoch at the older point)."""
    for query in sorted({*state.committed, *(name for name, _ in state.plans)}):
        newest = max(state.newest_plan(query), state.committed.get(query, -1))
        if newest > epochs.get(query, -1):
            raise WouldPublishAgain(
                f"The causal log has epoch {newest} of {query}, which a start from epoch {epochs.get(query, -1)} "
                "would publish again."
            )


def _retained_epochs(checkpoint: Path, epoch: int | None) -> dict[str, int]:
    """Query → the epoch, which each query of a checkpoint must still have."""
    queries = [path for path in checkpoint.iterdir() if (path / "metadata").is_file()] if checkpoint.is_dir() else []
    if epoch is None or not queries or not all((query / "commits" / str(epoch)).is_file() for query in queries):
        raise SavepointMissing(f"The checkpoint {checkpoint} holds no epoch {epoch} (any more).")
    return {query.name: epoch for query in queries}


def _empty_older(target: Path, newest: Path) -> None:
    """Free the space of the previous checkpoints of older requests; the next restore retries a failed removal."""
    if not any(newest.iterdir()):
        return  # there was no previous checkpoint, so that the older one is still the way back
    for folder in target.parent.glob(f"{glob.escape(target.name)}{_PREVIOUS_SUFFIX}*"):
        if folder != newest:
            for path in folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)


def _folder(location: str) -> Path:
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        raise SpecError(f"{location} is not a mounted folder, so no savepoint can be copied to it.")
    return Path(unquote(parts.path) if parts.scheme else location).absolute()


def main(
    spec: str, events: str, location: str, epoch: str, request_key: str, publish_again: str, *command: str
) -> None:
    """Restore the checkpoint, then replace this process with the driver's `command`.

    The arguments are those of `restore`, as text: `epoch` is ``-`` with a savepoint, and `publish_again` is ``publish-
    again`` if the user allows that epochs are published again.
    """
    job, settings = read_spec(Path(spec)), Settings()
    checkpoint = job.spec.checkpoint or default_checkpoint(settings.home, job.name)

    owner = JobOwner(
        job.name,
        tuple(_values(command, _OWNER)),
        next(map(Platform.parse, _values(command, _PLATFORM)), None),
        adopt=_ADOPT in command,
    )

    def allow(epochs: Mapping[str, int]) -> None:
        own = None if owner.adopt else owner.platform
        again = publish_again == _PUBLISH_AGAIN
        if (own is None and again) or (state := known_control(settings.kafka, job.name)) is None:
            return
        if own is not None:
            require_own(job.name, own, state.claim)
        # The control plane checked the reported epochs; the causal log also has the unreported ones.
        if not again:
            require_unpublished(state, epochs)

    number = None if epoch == _NO_EPOCH else int(epoch)
    try:
        if is_path(checkpoint) and is_path(location):
            restore(checkpoint, location, number, request_key, allow, owner=owner)
        else:
            with file_systems(_storage_conf(job, command), (checkpoint, location), settings) as folder:
                restore_stored(folder(checkpoint), folder(location), number, request_key, allow, owner=owner)
    except ClonosError as error:
        driver_events = Events(job.name, Path(events))
        driver_events.emit(Failed.of(error))
        driver_events.close()
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
    os.execv(command[0], command)  # noqa: S606


def _storage_conf(job: JobSpec, command: Sequence[str]) -> dict[str, str]:
    """Return the Spark configuration of the job, overridden by the cluster that the driver's command names."""
    conf = dict(job.spec.spark_conf)
    for file in _values(command, _CLUSTER):
        conf |= ClusterSpec.model_validate_json(Path(file).read_text()).spec.spark_conf
    return conf


def _values(command: Sequence[str], option: str) -> list[str]:
    """Return the values of an option in the driver's command line."""
    return [value for name, value in pairwise(command) if name == option]


if __name__ == "__main__":
    main(*sys.argv[1:])
