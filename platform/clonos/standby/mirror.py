"""Copies of checkpoints on HDFS or S3 in a folder of the standby's host, which rehearsals read.

Spark writes each file of the state once, under a unique name. So a refresh copies only files that are new.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from clonos.spark.stored_files import StoredFolder

_log = logging.getLogger("clonos")
_MAX_BYTES: Final = 2 << 30


class Mirror:
    """The copy of one query's checkpoint.

    Args:
        checkpoint: The checkpoint.
        path: A folder for the copy, which is created.
        max_bytes: A larger checkpoint is not copied: the standby then rehearses without state.
    """

    def __init__(self, checkpoint: StoredFolder, path: Path, max_bytes: int = _MAX_BYTES) -> None:
        self.path = path
        self._checkpoint = checkpoint
        self._max_bytes = max_bytes
        self._copied: set[str] = set()

    def refresh(self) -> None:
        """Copy the files of the newest committed epoch that are new, and remove those that are gone.

        An error leaves an older copy, or none.
        """
        try:
            files = self._checkpoint.files()
            wanted = _needed(files)
            size = sum(files[name] for name in wanted)
            if size > self._max_bytes:
                _log.info("not rehearsed on the state: the checkpoint has %d MB", size >> 20)
                wanted = set()
            for name in self._copied - wanted:
                (self.path / name).unlink(missing_ok=True)
            self._copied &= wanted
            # The log entries last: with them the copy is complete.
            for logs in (False, True):
                new = [name for name in wanted - self._copied if _is_log(name) == logs]
                self.path.mkdir(parents=True, exist_ok=True)
                missing = self._checkpoint.copy(self._checkpoint.at(f"file://{self.path}"), new)
                self._copied |= set(new) - set(missing)
        except OSError as error:
            _log.info("the checkpoint was not copied for rehearsals: %s", error)


def _needed(files: Mapping[str, int]) -> set[str]:
    """Return the files that a start from the newest committed epoch reads; empty if there is none."""
    commits = [int(name) for path in files if (name := path.removeprefix("commits/")).isdigit()]
    if not commits:
        return set()
    newest = max(commits)
    logs = {f"commits/{newest}", f"offsets/{newest}", f"offsets/{newest - 1}"}
    return {
        name
        for name in files
        if (name in logs or name.startswith(("sources/", "state/")))
        and not any(part.startswith(".") for part in name.split("/"))
    }


def _is_log(name: str) -> bool:
    return name.startswith(("commits/", "offsets/"))
