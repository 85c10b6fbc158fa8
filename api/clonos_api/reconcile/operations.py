"""Decides whether a REST operation on a job has completed or failed: a pure function."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from clonos.errors import JobFailed, Overtaken, SavepointNotTaken
from clonos.resources.failures import new_failure
from clonos.resources.jobs import DesiredState, Failure, JobState
from clonos_api.reconcile.transitions import Intent, settled


@dataclass(frozen=True)
class Completed:
    """The outcome of an operation that succeeded; `result` is what the REST API returns."""

    result: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failed:
    """The outcome of an operation that cannot succeed any more."""

    failure: Failure


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The facts about a job that decide whether its operations have ended."""

    state: JobState
    intent: Intent
    failure: Failure | None = None
    run: str | None = None
    generation: int = 0
    savepoint_requested: bool = False  # whether the stop takes a savepoint
    savepoint: str | None = None  # id of the savepoint that the stop took; None before


def judge(kind: str, progress: Progress) -> Completed | Failed | None:
    """Decides whether an operation of this `kind` (``start``, ``stop``, …) has completed or failed; None: it is in
    progress.
    """
    match kind:
        case "start" | "restart" | "resolve" | "rollback":
            return _started(progress)
        case "stop":
            return _stopped(progress)
        case "cancel" | "delete":
            return Completed() if progress.state is JobState.CANCELED else None
        case _:
            return None


def _started(progress: Progress) -> Completed | Failed | None:
    if progress.intent.desired is not DesiredState.RUNNING:
        return overtaken(f"the desired state of the job is {progress.intent.desired}")
    if not settled(progress.state, progress.intent):
        return None
    if progress.state is JobState.FAILED:
        return Failed(progress.failure or new_failure(JobFailed, "The job failed."))
    return Completed({"run": progress.run, "generation": progress.generation})


def _stopped(progress: Progress) -> Completed | Failed | None:
    if progress.intent.desired is DesiredState.RUNNING:
        return overtaken("the desired state of the job is RUNNING")
    if not (progress.state is JobState.CANCELED or (settled(progress.state, progress.intent))):
        return None
    if progress.savepoint_requested and progress.savepoint is None:
        return Failed(new_failure(SavepointNotTaken, "The job has ended, but no savepoint could be taken."))
    return Completed({"savepoint": progress.savepoint} if progress.savepoint else {})


def overtaken(by: str) -> Failed:
    """Return the failure of an operation whose request a newer one replaced; `by` describes the newer request."""
    return Failed(new_failure(Overtaken, f"A newer request replaced this one: {by}."))
