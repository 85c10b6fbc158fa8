"""Puts a job's checkpoint back to an older point, and then becomes the job's driver.

``python -m clonos.agent.restoring SPEC EVENTS LOCATION EPOCH WISH COMMAND…``, with ``-`` for no epoch. As the driver's
own process, so that it has the driver's user, limits, log and exit code. A wish is fulfilled once: whoever repeats it
finds it done, and goes on.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from clonos.engine.savepoint import MANIFEST, restore_savepoint, take_savepoint
from clonos.errors import CheckpointUnwritable, ClonosError, SpecError
from clonos.runner.driver import default_checkpoint
from clonos.runner.events import Events, trouble
from clonos.settings import Settings
from clonos.spec import read_spec

_NONE: Final = "-"


def restore(checkpoint: str, location: str, epoch: int | None, wish: str) -> None:
    """Put a checkpoint back; what was there is kept beside it, as ``….before-<wish>``.

    Args:
        checkpoint: Where the job's checkpoint is.
        location: A savepoint; or the checkpoint itself, to go back to one of its epochs.
        epoch: That epoch.
        wish: Key of the wish.

    Raises:
        SpecError: The checkpoint is not a mounted folder.
        SavepointMissing: There is no such savepoint, or no such epoch any more.
        CheckpointUnwritable: The checkpoint cannot be written.
    """
    place = _folder(checkpoint)
    before = place.with_name(f"{place.name}.before-{wish}")
    try:
        if not before.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            if place.exists():
                place.rename(before)
            else:
                before.mkdir()
    except OSError as error:
        raise CheckpointUnwritable(f"The checkpoint {checkpoint} cannot be put aside: {error}.") from error
    if (place / MANIFEST).is_file():
        return  # done already; the job may have gone on from it
    if _folder(location) == place:
        queries = [one.name for one in before.iterdir() if (one / "metadata").is_file()]
        take_savepoint(str(before), str(place), epochs=None if epoch is None else dict.fromkeys(queries, epoch))
    else:
        restore_savepoint(location, str(place))


def _folder(location: str) -> Path:
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        raise SpecError(f"{location} is not a mounted folder, so no savepoint can be copied to it.")
    return Path(unquote(parts.path) if parts.scheme else location).absolute()


def main(spec: str, events: str, location: str, epoch: str, wish: str, *command: str) -> None:
    """Restore, and become `command`."""
    job = read_spec(Path(spec))
    checkpoint = job.spec.checkpoint or default_checkpoint(Settings().home, job.name)
    try:
        restore(checkpoint, location, None if epoch == _NONE else int(epoch), wish)
    except ClonosError as error:
        told = Events(job.name, Path(events))
        told.emit("failed", **trouble(error))
        told.close()
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main(*sys.argv[1:])
