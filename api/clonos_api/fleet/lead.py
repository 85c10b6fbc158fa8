"""What a job does now, as a clause: for the lead line of its page.

The health, the stall and the forecast that the lead line shows beside it come from the board.
"""

from __future__ import annotations

from typing import Final

from clonos.resources.figures import number, rate
from clonos.resources.jobs import JobState
from clonos_api.fleet.lines import DISCONNECTED, Line

# In a transient state, and in one that has lasted for too long.
_CHANGES: Final = {
    JobState.STARTING: ("starts", "has not started yet"),
    JobState.RECOVERING: ("a new driver takes over", "no new driver has taken over yet"),
    JobState.STOPPING: ("stops after the epoch in progress", "has not stopped yet"),
    JobState.CANCELLING: ("is being canceled", "is not canceled yet"),
}
_ENDS: Final = {
    JobState.STOPPED: "stopped",
    JobState.FAILED: "failed",
    JobState.CANCELED: "canceled",
    JobState.FINISHED: "finished",
}


def clause(line: Line) -> str:
    """Return what a job without a stall does: ``publishes 120 records/s, lag 0`` or ``stopped after epoch 12``."""
    if line.state == JobState.RUNNING:
        return _output(line)
    if line.state in _CHANGES:
        return _CHANGES[JobState(line.state)][line.health == "bad"]
    if line.health in ("busy", "bad") and line.state in (JobState.CREATED, JobState.STOPPED):
        return _CHANGES[JobState.STARTING][line.health == "bad"]
    if line.state not in _ENDS:
        return "has never run"
    several = len(line.epochs) > 1
    epochs = [f"epoch {number(epoch)}{f' of {query}' if several else ''}" for query, epoch in line.epochs]
    return f"{_ENDS[JobState(line.state)]}{' after ' if epochs else ''}{' and '.join(epochs)}"


def _output(line: Line) -> str:
    if not any(seat.role == "driver" and seat.state != DISCONNECTED for seat in line.seats):
        return "has no connected driver"
    if line.first:
        return "runs, and has finished no epoch yet"
    parts = ["runs" if line.out_per_s is None else f"publishes {rate(line.out_per_s)} records/s"]
    if line.lag is not None:
        parts.append(f"lag {number(line.lag)}")
    return ", ".join(parts)
