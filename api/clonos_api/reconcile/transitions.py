"""The one table of transitions between job states; `reconcile.diagram` draws `docs/job-states.md` from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from clonos.resources.jobs import DesiredState, JobState


@dataclass(frozen=True)
class Asked:
    """What somebody asked for.

    Attributes:
        desired: What the job is to be.
        anew: It is to be started anew, although it runs or has ended.
    """

    desired: DesiredState
    anew: bool = False


Guard = Callable[[Asked], bool]


def always(asked: Asked) -> bool:
    """Whatever was asked for: it is what happened."""
    return True


def to_run(asked: Asked) -> bool:
    """It is to run."""
    return asked.desired is DesiredState.RUNNING


def to_run_anew(asked: Asked) -> bool:
    """It is to run, and somebody asked for that after it had ended."""
    return asked.desired is DesiredState.RUNNING and asked.anew


def to_end(asked: Asked) -> bool:
    """Its driver is to end in good order: for good, or to start anew or on another host."""
    return asked.desired is not DesiredState.CANCELED


def to_stop(asked: Asked) -> bool:
    """It is to be stopped."""
    return asked.desired is DesiredState.STOPPED


def to_cancel(asked: Asked) -> bool:
    """It is to be cancelled."""
    return asked.desired is DesiredState.CANCELED


@dataclass(frozen=True)
class Transition:
    """One line of the table.

    Attributes:
        when: For people.
        guard: What must have been asked for.
    """

    source: JobState
    target: JobState
    when: str
    guard: Guard = always


_S = JobState
TABLE: Final = (
    Transition(_S.CREATED, _S.STARTING, "asked to run", to_run),
    Transition(_S.CREATED, _S.CANCELED, "asked to cancel", to_cancel),
    Transition(_S.STARTING, _S.RUNNING, "its driver claimed the log", to_run),
    Transition(_S.STARTING, _S.RECOVERING, "its host is lost", to_run),
    Transition(_S.STARTING, _S.STOPPING, "asked to stop or to start anew", to_end),
    Transition(_S.STARTING, _S.STOPPED, "asked to stop, without a driver", to_stop),
    Transition(_S.STARTING, _S.CANCELLING, "asked to cancel", to_cancel),
    Transition(_S.STARTING, _S.CANCELED, "asked to cancel, without a driver", to_cancel),
    Transition(_S.STARTING, _S.FAILED, "no attempt can help, or no claim in time", to_run),
    Transition(_S.STARTING, _S.FINISHED, "worked through its input", to_run),
    Transition(_S.RUNNING, _S.RECOVERING, "its driver fell, or its host is lost; a standby has its place", to_run),
    Transition(_S.RUNNING, _S.STOPPING, "asked to stop or to start anew; its host is drained", to_end),
    Transition(_S.RUNNING, _S.STOPPED, "asked to stop, and its driver has ended", to_stop),
    Transition(_S.RUNNING, _S.CANCELLING, "asked to cancel", to_cancel),
    Transition(_S.RUNNING, _S.CANCELED, "asked to cancel, and its driver has ended", to_cancel),
    Transition(_S.RUNNING, _S.FAILED, "no attempt can help", to_run),
    Transition(_S.RUNNING, _S.FINISHED, "worked through its input", always),
    Transition(_S.RECOVERING, _S.RUNNING, "a newer generation works", to_run),
    Transition(_S.RECOVERING, _S.STOPPING, "asked to stop or to start anew", to_end),
    Transition(_S.RECOVERING, _S.STOPPED, "asked to stop, without a driver", to_stop),
    Transition(_S.RECOVERING, _S.CANCELLING, "asked to cancel", to_cancel),
    Transition(_S.RECOVERING, _S.CANCELED, "asked to cancel, without a driver", to_cancel),
    Transition(_S.RECOVERING, _S.FAILED, "no attempt can help, or not in time", to_run),
    Transition(_S.RECOVERING, _S.FINISHED, "worked through its input", to_run),
    Transition(_S.STOPPING, _S.STOPPED, "its driver has ended, or never answered", to_stop),
    Transition(_S.STOPPING, _S.STARTING, "its driver has ended, and it is to run", to_run),
    Transition(_S.STOPPING, _S.FINISHED, "worked through its input meanwhile", always),
    Transition(_S.STOPPING, _S.CANCELLING, "asked to cancel", to_cancel),
    Transition(_S.STOPPING, _S.CANCELED, "asked to cancel, and its driver has ended", to_cancel),
    Transition(_S.CANCELLING, _S.CANCELED, "its driver has ended, or never answered", to_cancel),
    Transition(_S.STOPPED, _S.STARTING, "asked to run", to_run),
    Transition(_S.STOPPED, _S.CANCELED, "asked to cancel", to_cancel),
    Transition(_S.FAILED, _S.STARTING, "asked to run anew", to_run_anew),
    Transition(_S.FAILED, _S.STOPPED, "asked to stop", to_stop),
    Transition(_S.FAILED, _S.CANCELED, "asked to cancel", to_cancel),
    Transition(_S.FINISHED, _S.STARTING, "asked to run anew", to_run_anew),
    Transition(_S.FINISHED, _S.CANCELED, "asked to cancel", to_cancel),
)

_BY_PAIR: Final = {(one.source, one.target): one for one in TABLE}

# Something is under way in these, so each has a deadline.
TRANSIENT: Final = frozenset({_S.STARTING, _S.RECOVERING, _S.STOPPING, _S.CANCELLING})


def allowed(source: JobState, target: JobState, asked: Asked) -> bool:
    """Whether the table has the transition and its guard holds."""
    line = _BY_PAIR.get((source, target))
    return line is not None and line.guard(asked)


def settled(state: JobState, asked: Asked) -> bool:
    """Whether a job is where it was asked to be, or where no attempt can help: only another word or fact moves it."""
    match state:
        case JobState.CREATED | JobState.STOPPED:
            return asked.desired is DesiredState.STOPPED
        case JobState.RUNNING:
            return asked.desired is DesiredState.RUNNING and not asked.anew
        case JobState.FAILED:
            return asked.desired is DesiredState.RUNNING and not asked.anew
        case JobState.FINISHED:
            return asked.desired is DesiredState.STOPPED or (asked.desired is DesiredState.RUNNING and not asked.anew)
        case JobState.CANCELED:
            return True
        case _:
            return False
