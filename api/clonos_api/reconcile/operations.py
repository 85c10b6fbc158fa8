"""When an operation on a job has come true, or cannot any more: a pure decision. Its deadline ends it in any case."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from clonos.resources.jobs import DesiredState, Failure, JobState
from clonos_api.reconcile.transitions import Asked, settled


@dataclass(frozen=True)
class Completed:
    """It came true."""

    result: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failed:
    """It cannot come true."""

    failure: Failure


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What an operation's end depends on.

    Attributes:
        wants_savepoint: The stop is to leave a savepoint.
        savepoint: The one that it left.
    """

    state: JobState
    asked: Asked
    failure: Failure | None = None
    run: str | None = None
    generation: int = 0
    wants_savepoint: bool = False
    savepoint: str | None = None


def judge(kind: str, seen: Seen) -> Completed | Failed | None:
    """How an operation ended; None: it has not.

    Args:
        kind: ``start``, ``stop``, ``restart``, ``cancel`` or ``delete``.
        seen: Its job.
    """
    match kind:
        case "start" | "restart":
            return _started(seen)
        case "stop":
            return _stopped(seen)
        case "cancel" | "delete":
            return Completed() if seen.state is JobState.CANCELED else None
        case _:
            return None


def _started(seen: Seen) -> Completed | Failed | None:
    if seen.asked.desired is not DesiredState.RUNNING:
        return overtaken(f"the job is to be {seen.asked.desired}")
    if not settled(seen.state, seen.asked):
        return None
    if seen.state is JobState.FAILED:
        return Failed(seen.failure or Failure(error="job-failed", what="The job failed.", domain="run"))
    return Completed({"run": seen.run, "generation": seen.generation})


def _stopped(seen: Seen) -> Completed | Failed | None:
    if seen.asked.desired is DesiredState.RUNNING:
        return overtaken("the job is to be RUNNING")
    if not (seen.state is JobState.CANCELED or (settled(seen.state, seen.asked))):
        return None
    if seen.wants_savepoint and seen.savepoint is None:
        return Failed(
            Failure(
                error="savepoint-not-taken",
                what="The job has ended, but no savepoint could be taken.",
                kept="its own checkpoint: it can be started where it ended.",
                hint="see the job's failure; take a savepoint once its host is back.",
                domain="environment",
                retry=True,
            )
        )
    return Completed({"savepoint": seen.savepoint} if seen.savepoint else {})


def overtaken(by: str) -> Failed:
    """Somebody asked for something else since."""
    what = f"Somebody asked for something else meanwhile: {by}."
    return Failed(Failure(error="overtaken", what=what, kept="what was asked for last counts.", domain="user"))
