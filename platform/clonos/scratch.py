"""The folder for temporary files of one driver: Spark's blocks, the spool of an epoch's rows, sockets, settings.

Folders for temporary files of the system are cleaned by age, and are often small and in memory. So each driver that
`clonos run` starts has a folder of its own below ``CLONOS_SCRATCH``. A killed driver cannot remove it: the next one
does. The driver of an agent has a folder of its run, which the agent removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

from clonos.errors import ScratchUnwritable

_PREFIX: Final = "driver-"
_LOCK: Final = ".lock"


@contextlib.contextmanager
def own_scratch(parent: Path) -> Iterator[Path]:
    """Provide a new folder in `parent`, where this process and those that it starts create temporary files inside the
    context.

    Folders of processes that have ended are removed, and this one at the end.

    Raises:
        ScratchUnwritable: The folder cannot be created.
    """
    parent = parent.absolute()
    before, tempdir = os.environ.get("TMPDIR"), tempfile.tempdir
    with contextlib.ExitStack() as files:
        try:
            folder = _create(parent, files)
        except OSError as error:
            raise ScratchUnwritable(
                f"The folder for temporary files {parent} cannot be used: {error.strerror}.",
                kept="nothing was started.",
            ) from error
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        try:
            yield folder
        finally:
            tempfile.tempdir = tempdir
            if before is None:
                os.environ.pop("TMPDIR", None)
            else:
                os.environ["TMPDIR"] = before
            shutil.rmtree(folder, ignore_errors=True)


def _create(parent: Path, files: contextlib.ExitStack) -> Path:
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (parent / _LOCK).open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)  # no other process removes the folder before its lock is held
        for left in parent.glob(f"{_PREFIX}*"):
            _remove_if_left(left)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        lock: TextIO = files.enter_context((folder / _LOCK).open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        return folder


def _remove_if_left(folder: Path) -> None:
    """Remove the folder of a process that has ended: the kernel has released its lock."""
    with contextlib.suppress(OSError), (folder / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
