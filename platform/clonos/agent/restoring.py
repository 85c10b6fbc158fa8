"""Puts a job's checkpoint back to an older point, and then becomes the job's driver.

``python -m clonos.agent.restoring SPEC EVENTS LOCATION EPOCH WISH AGAIN COMMAND…``, with ``-`` for no epoch and
``publish-again`` or ``-`` for the user's word. As the driver's own process, so that it has the driver's user, limits,
log and exit code. A wish is fulfilled once: whoever repeats it finds it done, and goes on.

What was put aside for the newest wish stays, as the way back. Of older ones only the empty folder does: it says that
the wish is done, also to a driver on a host that was taken for lost.
"""

from __future__ import annotations

import glob
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from clonos.engine.savepoint import MANIFEST, read_savepoint, restore_savepoint, take_savepoint
from clonos.errors import CheckpointUnwritable, ClonosError, SavepointMissing, SpecError, WouldPublishAgain
from clonos.log.control import ControlState, known_control
from clonos.runner.driver import default_checkpoint
from clonos.runner.events import Events, trouble
from clonos.settings import Settings
from clonos.spec import read_spec

_NONE: Final = "-"
_AGAIN: Final = "publish-again"
_BEFORE: Final = ".before-"


def _anything(epochs: Mapping[str, int]) -> None:
    """Allow everything."""


def restore(
    checkpoint: str, location: str, epoch: int | None, wish: str, allow: Callable[[Mapping[str, int]], None] = _anything
) -> None:
    """Put a checkpoint back; what was there is kept beside it, as ``….before-<wish>``, until the next wish.

    Args:
        checkpoint: Where the job's checkpoint is.
        location: A savepoint; or the checkpoint itself, to go back to one of its epochs.
        epoch: That epoch.
        wish: Key of the wish.
        allow: Raises if the job may not go back to these epochs (query → epoch). Asked before anything is touched.

    Raises:
        SpecError: The checkpoint is not a mounted folder.
        SavepointMissing: There is no such savepoint, or no such epoch any more.
        CheckpointUnwritable: The checkpoint cannot be written.
        WouldPublishAgain: As `allow` says.
    """
    place = _folder(checkpoint)
    before = place.with_name(f"{place.name}{_BEFORE}{wish}")
    if before.exists() and (place / MANIFEST).is_file():
        return  # done already; the job may have gone on from it
    own = _folder(location) == place
    wanted = _retained(before if before.exists() else place, epoch) if own else read_savepoint(location).epochs
    allow(wanted)
    try:
        if not before.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            if place.exists():
                place.rename(before)
            else:
                before.mkdir()
    except OSError as error:
        raise CheckpointUnwritable(f"The checkpoint {checkpoint} cannot be put aside: {error}.") from error
    if own:
        take_savepoint(str(before), str(place), epochs=wanted)
    else:
        restore_savepoint(location, str(place))
    _empty_older(place, before)


def published_beyond(state: ControlState, epochs: Mapping[str, int]) -> None:
    """Whether the causal log knows of an epoch, finished or in doubt, that a start from `epochs` would publish again.

    Raises:
        WouldPublishAgain: It does.
    """
    for query in sorted({*state.ended, *(name for name, _ in state.plans)}):
        newest = max(state.newest_plan(query), state.ended.get(query, -1))
        if newest > epochs.get(query, -1):
            raise WouldPublishAgain(
                f"The causal log knows epoch {newest} of {query}, which a start from epoch {epochs.get(query, -1)} "
                "would publish again."
            )


def _retained(checkpoint: Path, epoch: int | None) -> dict[str, int]:
    """Query → the epoch, which each query of a checkpoint must still have."""
    queries = [one for one in checkpoint.iterdir() if (one / "metadata").is_file()] if checkpoint.is_dir() else []
    if epoch is None or not queries or not all((one / "commits" / str(epoch)).is_file() for one in queries):
        raise SavepointMissing(f"The checkpoint {checkpoint} holds no epoch {epoch} (any more).")
    return {one.name: epoch for one in queries}


def _empty_older(place: Path, newest: Path) -> None:
    """Free the space of what was put aside for older wishes. What cannot be removed is tried at the next one."""
    if not any(newest.iterdir()):
        return  # nothing was there to put aside: the one before is the way back still
    for folder in place.parent.glob(f"{glob.escape(place.name)}{_BEFORE}*"):
        if folder != newest:
            for one in folder.iterdir():
                if one.is_dir():
                    shutil.rmtree(one, ignore_errors=True)
                else:
                    one.unlink(missing_ok=True)


def _folder(location: str) -> Path:
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        raise SpecError(f"{location} is not a mounted folder, so no savepoint can be copied to it.")
    return Path(unquote(parts.path) if parts.scheme else location).absolute()


def main(spec: str, events: str, location: str, epoch: str, wish: str, again: str, *command: str) -> None:
    """Restore, and become `command`."""
    job, settings = read_spec(Path(spec)), Settings()
    checkpoint = job.spec.checkpoint or default_checkpoint(settings.home, job.name)

    def allow(epochs: Mapping[str, int]) -> None:
        # The control plane has looked at what was told; what was not, the log knows.
        if again != _AGAIN and (state := known_control(settings.kafka, job.name)) is not None:
            published_beyond(state, epochs)

    try:
        restore(checkpoint, location, None if epoch == _NONE else int(epoch), wish, allow)
    except ClonosError as error:
        told = Events(job.name, Path(events))
        told.emit("failed", **trouble(error))
        told.close()
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main(*sys.argv[1:])
