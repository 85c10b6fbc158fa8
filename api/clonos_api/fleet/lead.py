"""What a job does now, as a clause: for the lead line of its page.

The health, the stall and the forecast that the lead line shows beside it are those of the board.
"""

from __future__ import annotations

from typing import Final

from clonos.resources.figures import number, rate
from clonos.resources.jobs import JobState
from clonos_api.fleet.lines import DISCONNECTED, Line

_CHANGES: Final = {
    JobState.STARTING: "starts",
    JobState.RECOVERING: "a new driver takes over",
    JobState.STOPPING: "stops after the epoch in progress",
    JobState.CANCELLING: "is being canceled",
}
_ENDS: Final = {
    JobState.STOPPED: "stopped",
    JobState.FAILED: "failed",
    JobState.CANCELED: "canceled",
    JobState.FINISHED: "finished",
}


def clause(line: Line) -> str:
    """What a job without a stall does: ``publishes 120 records/s, lag 0`` or ``stopped after epoch 12``."""
    if line.state == JobState.RUNNING:
        return _output(line)
    if line.state in _CHANGES:
        return _CHANGES[JobState(line.state)]
    if line.state not in _ENDS:
        return "has never run"
    numbers = " and ".join(filter(None, map(number, line.epochs)))
    after = f" after epoch{'s' if len(line.epochs) > 1 else ''} {numbers}" if numbers else ""
    return f"{_ENDS[JobState(line.state)]}{after}"


def _output(line: Line) -> str:
    if not any(seat.role == "driver" and seat.state != DISCONNECTED for seat in line.seats):
        return "has no connected driver"
    parts = ["runs" if line.out_per_s is None else f"publishes {rate(line.out_per_s)} records/s"]
    if line.lag is not None:
        parts.append(f"lag {number(line.lag)}")
    return ", ".join(parts)
