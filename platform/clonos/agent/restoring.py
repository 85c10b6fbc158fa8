"""Restores a job's checkpoint to an older point, then becomes the job's driver.

``python -m clonos.agent.restoring SPEC EVENTS LOCATION EPOCH REQUEST_KEY PUBLISH_AGAIN COMMAND…`` calls `main`. The
restore runs in the driver's own process, with the driver's user, limits, log and exit code. It is executed once for
each request key; a repeated request continues with the restored checkpoint.

The checkpoint that the newest request replaced stays, as a way back. Of older requests only an empty directory remains.
It shows each driver, also one on a host that was considered lost, that the request was executed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from clonos.driver import savepoint
from clonos.driver.checkpoint_owner import OWNER_FILE, JobOwner, check_checkpoint
from clonos.driver.driver import default_checkpoint
from clonos.errors import CheckpointUnwritable, ClonosError, WouldPublishAgain
from clonos.jobs.cluster import ClusterSpec
from clonos.jobs.locations import locate
from clonos.jobs.spec import JobSpec, read_spec
from clonos.log.claiming import require_own
from clonos.log.control import ControlState, known_control
from clonos.log.platform_identity import Platform
from clonos.settings import Settings
from clonos.spark.file_systems import file_systems
from clonos.spark.stored_files import Folder
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
    target: Folder,
    location: Folder,
    epoch: int | None,
    request_key: str,
    allow: Callable[[Mapping[str, int]], None] = _allow_all,
    *,
    owner: JobOwner,
) -> None:
    """Restore a checkpoint. The replaced one stays beside it, as ``….before-<request_key>``, until the next restore.

    On S3 no rename moves the checkpoint aside in one step. Each step is repeated after a crash.

    Args:
        target: The job's checkpoint.
        location: A savepoint; or the checkpoint itself, to return to one of its epochs.
        epoch: Epoch to return to; None with a savepoint.
        request_key: Idempotency key of the request.
        allow: Called before any change with the epochs to restore (query → epoch); raises if the job must not return to
            them.
        owner: The job, with the subject of the savepoint among its subjects.

    Raises:
        CheckpointForeign: The checkpoint belongs to another job or subject, or the savepoint to another subject.
        JobForeign: The checkpoint belongs to another platform.
        SavepointMissing: There is no such savepoint, or the checkpoint no longer has the epoch.
        CheckpointUnwritable: The checkpoint cannot be written.
        WouldPublishAgain: Raised by `allow`.
    """
    try:
        check_checkpoint(target.read_text(OWNER_FILE), owner, target.location)
        previous = target.at(f"{target.location}{_PREVIOUS_SUFFIX}{request_key}")
        moved = savepoint.is_moved(previous)
        if moved and target.exists(savepoint.MANIFEST):
            return  # executed already; the job may have continued from it
        from_itself = locate(location.location) == locate(target.location)
        if from_itself:
            epochs = savepoint.retained_epochs(previous if moved else target, epoch)
        else:
            epochs = savepoint.read(location).epochs
            savepoint.check_restore(location, target, owner)
        allow(epochs)
        savepoint.move_aside(target, previous)
        if from_itself:
            savepoint.take(previous, target, owner=owner, epochs=epochs, as_checkpoint=True)
        else:
            savepoint.restore(location, target, owner)
        if savepoint.has_checkpoint(previous):  # otherwise the older one is still the way back
            for older in target.siblings(_PREVIOUS_SUFFIX):
                if older.location != previous.location:
                    savepoint.empty(older)
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
        with file_systems(_storage_conf(job, command), (checkpoint, location), settings) as folder:
            restore(folder(checkpoint), folder(location), number, request_key, allow, owner=owner)
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
    return [value for name, value in pairwise(command) if name == option]


if __name__ == "__main__":
    main(*sys.argv[1:])
