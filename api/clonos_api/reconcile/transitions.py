"""The table of transitions between job states, with their effects; it writes docs/job-states.md.

``python -m clonos_api.reconcile.transitions > docs/job-states.md``
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog

from clonos.errors import StartPointMissing
from clonos.resources.jobs import DesiredState, Failure, JobState

_log = structlog.get_logger("clonos.reconcile")


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

    def columns(self, restart_nonce: int, failure: Failure | None) -> dict[str, Any]:
        """Return the columns that change with the state, in the row of a job with this `restart_nonce`."""
        columns = new_start(restart_nonce) if self.new_start else {}
        if self.target is JobState.FAILED and failure is not None and failure.error == StartPointMissing.slug:
            columns["start_from"] = None  # the next start continues with the job's own checkpoint
        return columns

    def reserves_slot(self, desired: DesiredState) -> bool:
        """Whether a free slot is reserved for the job's next driver; a stop before it has reserved one already."""
        leaves = self.target is JobState.STOPPING and desired is DesiredState.RUNNING
        return leaves or (self.new_start and self.source is not JobState.STOPPING)

    def log(self, job: str) -> None:
        """Log the transition of the job with this name, after it is committed."""
        _log.info("job-state-changed", job=job, source=str(self.source), target=str(self.target))


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


def rule_of(source: JobState, target: JobState | None) -> Rule | None:
    """Return the rule of a transition; None: the table does not have it, or there is none."""
    return _BY_PAIR.get((source, target)) if target is not None else None


def allowed(source: JobState, target: JobState, intent: Intent) -> bool:
    """Whether the table has the transition and its guard holds."""
    rule = rule_of(source, target)
    return rule is not None and rule.guard(intent)


def new_start(restart_nonce: int) -> dict[str, Any]:
    """Return the columns that a new start (`Rule.new_start`) sets in the row of a job with this `restart_nonce`."""
    return {"run": None, "stop": None, "observed_nonce": restart_nonce}


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


_HEAD = """\
# Job states

Generated from its table by `python -m clonos_api.reconcile.transitions`;
a test fails when the two differ. Transitions that are not listed cannot happen.
States in bold have [deadlines](control-plane.md#job-states).

A *new start* clears the previous run and the stop request, and satisfies a pending restart request.
It runs the job's version: the newest, unless its upgrade failed or `clonos job rollback` chose another. While other
versions finish their epochs in doubt ([ADR 57](adr/0057-versions-finish-their-epochs.md)), the job stays STARTING or
RECOVERING.

"""


def page() -> str:
    """Return docs/job-states.md as Markdown."""
    lines = [_HEAD + "```mermaid", "stateDiagram-v2", "    [*] --> CREATED"]
    lines += [f"    {rule.source} --> {rule.target}: {rule.when}" for rule in RULES]
    final = [state for state in JobState if all(rule.source is not state for rule in RULES)]
    lines += [f"    {state} --> [*]" for state in final]
    lines += ["```", "", "| from | to | when | condition | effect |", "|---|---|---|---|---|"]
    for rule in RULES:
        condition = (rule.guard.__doc__ or "").strip().splitlines()[0].removeprefix("Check that ").rstrip(".")
        effect = "new start" if rule.new_start else ""
        lines.append(f"| {_name(rule.source)} | {_name(rule.target)} | {rule.when} | {condition} | {effect} |")
    return "\n".join(lines) + "\n"


def _name(state: JobState) -> str:
    return f"**{state}**" if state in TRANSIENT else str(state)


if __name__ == "__main__":
    sys.stdout.write(page())
