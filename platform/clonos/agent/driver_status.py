"""The status of a driver, computed from its event file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from clonos.driver.states import DriverState
from clonos.standby.states import StandbyState
from clonos.telemetry.driver_events import (
    DriverEvent,
    Epoch,
    Failed,
    Following,
    PrimaryStalled,
    Report,
    Standby,
    State,
    Summary,
    Superseded,
    Waiting,
    from_line,
)

# Only the end of the file is read: the file of a driver that ran for days is large, and its end has the newest status.
_TAIL_BYTES: Final = 1 << 20


class DriverStatus:
    """Reads the event file of one attempt from the byte `start` on, and keeps what its driver reported last."""

    def __init__(self, path: Path, start: int) -> None:
        self._path = path
        self._offset = self._start = start
        self.state: str | None = None  # state of the driver (`DriverState`)
        self.standby: str | None = None  # state of the standby (`StandbyState`), if the attempt was started as one
        self.generation = 0  # generation of the driver's newest claim
        self.progressed = False  # whether the attempt has finished an epoch
        self.failure_event: Report | None = None  # the event with the reason of the driver's failure
        self.summary: Summary | None = None  # the event ``summary``, which a driver writes last
        self.waiting_event: Waiting | None = None  # the event with the reason of the state WAITING
        self.changed_at = 0.0  # when the driver or the standby last reported a change of its state; seconds since 1970
        # When the standby last reported that the job's driver makes no progress; seconds since 1970.
        self.stalled_at = 0.0

    def read(self) -> None:
        """Read the events that were appended since the last call."""
        try:
            with self._path.open("rb") as file:
                end = file.seek(0, 2)
                skipped = end - self._offset > _TAIL_BYTES
                self._offset = end - _TAIL_BYTES if skipped else self._offset
                file.seek(self._offset)
                data = file.read(_TAIL_BYTES)
        except OSError:
            return
        complete = data.rfind(b"\n") + 1
        self._offset += complete
        for line in data[:complete].split(b"\n")[1 if skipped else 0 :]:
            self._apply(line)

    def heartbeat_at(self) -> float | None:
        """Time of the driver's newest heartbeat, in seconds since 1970; None before the attempt's first event.

        A heartbeat is a touch of the event file.
        """
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime if status.st_size > self._start else None

    def touched_at(self) -> float:
        """Time at which the event file was touched last, in seconds since 1970; 0.0: it does not exist."""
        try:
            return self._path.stat().st_mtime
        except OSError:
            return 0.0

    def _apply(self, line: bytes) -> None:
        try:
            event: DriverEvent = from_line(line)
        except ValueError:
            return  # half a line of a killed driver, or text that the job itself wrote into the file
        self.generation = max(self.generation, event.generation)
        match event:
            case State():
                self.changed_at = event.at
                if event.state in DriverState.__members__:
                    self.state = event.state
            case Standby() | Following():
                if isinstance(event, Standby):
                    self.changed_at = event.at
                if event.state in StandbyState.__members__:
                    self.standby = event.state
            case PrimaryStalled():
                self.stalled_at = event.at
            case Epoch():
                self.progressed = True
                self.state = self.state or DriverState.RUNNING
            case Failed() | Superseded():
                self.failure_event = event
                self.state = DriverState.FAILED if isinstance(event, Failed) else DriverState.SUPERSEDED
            case Waiting():
                self.waiting_event = event
            case Summary():
                self.summary = event
