"""What a driver has told of itself in its event file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from clonos.runner.states import DriverState

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
        generation: Its newest claim.
        progressed: Whether it has finished an epoch.
        trouble: The event that told why it could not go on.
        summary: Its last event.
    """

    def __init__(self, path: Path, start: int) -> None:
        self._path = path
        self._offset = start
        self.state: str | None = None
        self.generation = 0
        self.progressed = False
        self.trouble: dict[str, Any] | None = None
        self.summary: dict[str, Any] | None = None

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

    def _take(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            name, generation = event["event"], int(event.get("generation") or 0)
        except (ValueError, TypeError, KeyError):
            return  # the half line of a driver that was killed, or what a job wrote into the file itself
        self.generation = max(self.generation, generation)
        if name == "state" and event.get("state") in DriverState.__members__:
            self.state = event["state"]
        elif name == "epoch":
            self.progressed = True
            self.state = self.state or DriverState.RUNNING
        elif name in _ENDS:
            self.trouble = event
            self.state = DriverState.FAILED if name == "failed" else DriverState.SUPERSEDED
        elif name == "summary":
            self.summary = event
