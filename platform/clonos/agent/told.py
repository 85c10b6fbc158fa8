"""What a driver has told of itself in its event file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from clonos.runner.states import DriverState
from clonos.standby.states import StandbyState

# The end of the file says all that is asked here; a driver that ran for days has told much more.
_TAIL: Final = 1 << 20
_ENDS: Final = frozenset({"failed", "superseded"})


class Told:
    """Follows an attempt's events.

    Args:
        path: The event file.
        start: Where the attempt's part begins.

    Attributes:
        state: The driver's own.
        standby: What it is as a standby, if it was started as one.
        generation: Its newest claim.
        progressed: Whether it has finished an epoch.
        trouble: The event that told why it could not go on.
        summary: Its last event.
        stalled_at: When it told last, as a standby, that the job's driver makes no progress.
    """

    def __init__(self, path: Path, start: int) -> None:
        self._path = path
        self._offset = self._start = start
        self.state: str | None = None
        self.standby: str | None = None
        self.generation = 0
        self.progressed = False
        self.trouble: dict[str, Any] | None = None
        self.summary: dict[str, Any] | None = None
        self.stalled_at = 0.0

    def read(self) -> None:
        """Take what is new."""
        try:
            with self._path.open("rb") as file:
                end = file.seek(0, 2)
                cut = end - self._offset > _TAIL
                self._offset = end - _TAIL if cut else self._offset
                file.seek(self._offset)
                data = file.read(_TAIL)
        except OSError:
            return
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        for line in data[:whole].split(b"\n")[1 if cut else 0 :]:
            self._take(line)

    def alive_at(self) -> float | None:
        """When it showed last that it is alive, by the file's own time; None before its first word."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime if status.st_size > self._start else None

    def _take(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            name, generation = event["event"], int(event.get("generation") or 0)
        except (ValueError, TypeError, KeyError):
            return  # the half line of a driver that was killed, or what a job wrote into the file itself
        self.generation = max(self.generation, generation)
        if name == "state" and event.get("state") in DriverState.__members__:
            self.state = event["state"]
        elif name == "standby" and event.get("state") in StandbyState.__members__:
            self.standby = event["state"]
        elif name == "primary-stalled":
            self.stalled_at = float(event.get("at") or 0.0)
        elif name == "epoch":
            self.progressed = True
            self.state = self.state or DriverState.RUNNING
        elif name in _ENDS:
            self.trouble = event
            self.state = DriverState.FAILED if name == "failed" else DriverState.SUPERSEDED
        elif name == "summary":
            self.summary = event
