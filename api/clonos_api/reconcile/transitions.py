"""The table of transitions between job states, with their effects; `reconcile.diagram` writes docs/job-states.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from clonos.resources.jobs import DesiredState, JobState


@dataclass(frozen=True)
class Intent:
    """What the user wants of a job; some transitions of the job's state depend on it."""

    desired: DesiredState
    restart: bool = False  # a new start is requested, although the job runs or has ended


def always(intent: Intent) -> bool:
    """Check nothing: the transition records an observed fact."""
    return True


def run_desired(intent: Intent) -> bool:
    """Check that the desired state is RUNNING."""
    return intent.desired is DesiredState.RUNNING


def restart_desired(intent: Intent) -> bool:
    """Check that the desired state is RUNNING, requested after the job had ended."""
    return intent.desired is DesiredState.RUNNING and intent.restart


def not_canceled(intent: Intent) -> bool:
    """Check that the desired state is not CANCELED."""
    return intent.desired is not DesiredState.CANCELED


def stop_desired(intent: Intent) -> bool:
    """Check that the desired state is STOPPED."""
    return intent.desired is DesiredState.STOPPED


def cancel_desired(intent: Intent) -> bool:
    """Check that the desired state is CANCELED."""
    return intent.desired is DesiredState.CANCELED


@dataclass(frozen=True)
class Rule:
    """One transition between job states: one row of the table."""

    source: JobState
    target: JobState
    when: str  # condition in words, for the documentation
    guard: Callable[[Intent], bool] = always  # checks the user's request; documented by its docstring
    # whether the transition begins a new start of the job: earlier runs and the stop request no longer count, and a
    # pending restart request is satisfied
    new_start: bool = False


_S = JobState
RULES: Final = (
    Rule(_S.CREATED, _S.STARTING, "start requested", run_desired, new_start=True),
    Rule(_S.CREATED, _S.CANCELED, "cancel requested", cancel_desired),
    Rule(_S.STARTING, _S.RUNNING, "its driver claimed the log", run_desired),
    Rule(_S.STARTING, _S.RECOVERING, "its host is lost", run_desired),
    Rule(_S.STARTING, _S.STOPPING, "stop or restart requested", not_canceled),
    Rule(_S.STARTING, _S.STOPPED, "stop requested, without a driver", stop_desired),
    Rule(_S.STARTING, _S.CANCELLING, "cancel requested", cancel_desired),
    Rule(_S.STARTING, _S.CANCELED, "cancel requested, without a driver", cancel_desired),
    Rule(_S.STARTING, _S.FAILED, "a retry cannot help, or no claim in time", run_desired),
    Rule(_S.STARTING, _S.FINISHED, "all input processed", run_desired),
    Rule(_S.RUNNING, _S.RECOVERING, "its driver failed, its host is lost, or a standby takes over", run_desired),
    Rule(_S.RUNNING, _S.STOPPING, "stop or restart requested; its host drains", not_canceled),
    Rule(_S.RUNNING, _S.STOPPED, "stop requested, its driver has ended", stop_desired),
    Rule(_S.RUNNING, _S.CANCELLING, "cancel requested", cancel_desired),
    Rule(_S.RUNNING, _S.CANCELED, "cancel requested, its driver has ended", cancel_desired),
    Rule(_S.RUNNING, _S.FAILED, "a retry cannot help", run_desired),
    Rule(_S.RUNNING, _S.FINISHED, "all input processed", always),
    Rule(_S.RECOVERING, _S.RUNNING, "a newer generation runs", run_desired),
    Rule(_S.RECOVERING, _S.STOPPING, "stop or restart requested", not_canceled),
    Rule(_S.RECOVERING, _S.STOPPED, "stop requested, without a driver", stop_desired),
    Rule(_S.RECOVERING, _S.CANCELLING, "cancel requested", cancel_desired),
    Rule(_S.RECOVERING, _S.CANCELED, "cancel requested, without a driver", cancel_desired),
    Rule(_S.RECOVERING, _S.FAILED, "a retry cannot help, or no recovery in time", run_desired),
    Rule(_S.RECOVERING, _S.FINISHED, "all input processed", run_desired),
    Rule(_S.STOPPING, _S.STOPPED, "its driver has ended or never responded", stop_desired),
    Rule(_S.STOPPING, _S.STARTING, "its driver has ended, start requested", run_desired, new_start=True),
    Rule(_S.STOPPING, _S.FINISHED, "all input processed before the stop", always),
    Rule(_S.STOPPING, _S.CANCELLING, "cancel requested", cancel_desired),
    Rule(_S.STOPPING, _S.CANCELED, "cancel requested, its driver has ended", cancel_desired),
    Rule(_S.CANCELLING, _S.CANCELED, "its driver has ended or never responded", cancel_desired),
    Rule(_S.STOPPED, _S.STARTING, "start requested", run_desired, new_start=True),
    Rule(_S.STOPPED, _S.CANCELED, "cancel requested", cancel_desired),
    Rule(_S.FAILED, _S.STARTING, "new start requested", restart_desired, new_start=True),
    Rule(_S.FAILED, _S.STOPPED, "stop requested", stop_desired),
    Rule(_S.FAILED, _S.CANCELED, "cancel requested", cancel_desired),
    Rule(_S.FINISHED, _S.STARTING, "new start requested", restart_desired, new_start=True),
    Rule(_S.FINISHED, _S.CANCELED, "cancel requested", cancel_desired),
)

_BY_PAIR: Final = {(rule.source, rule.target): rule for rule in RULES}

# States in which something is in progress; each has a deadline.
TRANSIENT: Final = frozenset({_S.STARTING, _S.RECOVERING, _S.STOPPING, _S.CANCELLING})


def allowed(source: JobState, target: JobState, intent: Intent) -> bool:
    """Whether the table has the transition and its guard holds."""
    rule = _BY_PAIR.get((source, target))
    return rule is not None and rule.guard(intent)


def new_start(restart_nonce: int) -> dict[str, Any]:
    """Return the columns that `Rule.new_start` sets in the row of a job with this `restart_nonce`."""
    return {"run": None, "stop": None, "observed_nonce": restart_nonce}


def begins_new_start(source: JobState, target: JobState) -> bool:
    """Whether this transition begins a new start of the job (`Rule.new_start`)."""
    rule = _BY_PAIR.get((source, target))
    return rule is not None and rule.new_start


def settled(state: JobState, intent: Intent) -> bool:
    """Whether a job stays in its state until a new request or a failure.

    A settled job is in its desired state (FINISHED counts as STOPPED), or has FAILED or FINISHED since its last start.
    """
    match state:
        case JobState.CREATED | JobState.STOPPED:
            return intent.desired is DesiredState.STOPPED
        case JobState.RUNNING | JobState.FAILED:
            return intent.desired is DesiredState.RUNNING and not intent.restart
        case JobState.FINISHED:
            return intent.desired is DesiredState.STOPPED or (
                intent.desired is DesiredState.RUNNING and not intent.restart
            )
        case JobState.CANCELED:
            return True
        case _:
            return False
