"""Locations of checkpoints, and whether every host can access them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from clonos.jobs.locations import is_path, locate
from clonos_api.settings import ApiSettings


@dataclass(frozen=True)
class CheckpointLocations:
    """The directories that contain checkpoints and savepoints."""

    home: Path  # ``CLONOS_HOME``, assumed to be the same on all hosts
    shared: str | None  # directory that all hosts can access; None if there is none
    savepoints: str  # default directory of savepoints

    @classmethod
    def of(cls, settings: ApiSettings) -> CheckpointLocations:
        """Return the directories of checkpoints and savepoints that the control plane's settings define."""
        return cls(settings.home, settings.shared_checkpoints, settings.savepoint_location)

    def of_job(self, name: str, specified: str | None = None) -> str:
        """Return the checkpoint directory of a job; `specified` is the one in its specification."""
        if specified:
            return specified
        base = self.shared or str(self.home.absolute())
        prefix = "" if urlsplit(base).scheme else "file://"
        return f"{prefix}{base.rstrip('/')}/jobs/{name}/checkpoint"

    def is_local(self, checkpoint: str, shared: Iterable[str] = ()) -> bool:
        """Whether a checkpoint's location is a path that only one host can access.

        `shared` are further locations that all hosts of the job can access: its Spark cluster's.
        """
        if not is_path(checkpoint):
            return False
        folder = locate(checkpoint)
        return not any(folder.is_below(locate(base)) for base in (self.shared, *shared) if base)
