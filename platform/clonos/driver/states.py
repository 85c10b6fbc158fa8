"""The states of a driver, and the table of allowed transitions between them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class DriverState(StrEnum):
    """The states of a driver. The last four are final."""

    STARTING = "STARTING"  # starts the JVM and the session, loads the job function
    CLAIMING = "CLAIMING"  # becomes the owner of the causal log
    RECONCILING = "RECONCILING"  # makes the checkpoint agree with the log, checks source retention
    RUNNING = "RUNNING"  # runs its queries
    RESTARTING = "RESTARTING"  # a query failed; the driver backs off in the warm session
    WAITING = "WAITING"  # Kafka, a registry, a service or the checkpoint's file system is away; no limit
    STOPPING = "STOPPING"  # a stop was requested; the driver finishes the epoch
    STOPPED = "STOPPED"  # stopped as requested; the job can continue
    FINISHED = "FINISHED"  # a bounded run has processed its input
    SUPERSEDED = "SUPERSEDED"  # a newer claim owns the job
    FAILED = "FAILED"  # ended with an error that its restart policy does not retry


_S = DriverState
TRANSITIONS: Final[dict[DriverState, frozenset[DriverState]]] = {
    _S.STARTING: frozenset({_S.CLAIMING, _S.WAITING, _S.STOPPED, _S.FAILED}),
    _S.CLAIMING: frozenset({_S.RECONCILING, _S.RESTARTING, _S.WAITING, _S.SUPERSEDED, _S.STOPPED, _S.FAILED}),
    _S.RECONCILING: frozenset({_S.RUNNING, _S.RESTARTING, _S.WAITING, _S.SUPERSEDED, _S.STOPPED, _S.FAILED}),
    _S.RUNNING: frozenset({_S.RESTARTING, _S.WAITING, _S.STOPPING, _S.FINISHED, _S.SUPERSEDED, _S.FAILED}),
    _S.RESTARTING: frozenset({_S.CLAIMING, _S.STOPPED, _S.SUPERSEDED, _S.FAILED}),
    # Back to STARTING before the first claim; to RUNNING if the queries outlast the outage.
    _S.WAITING: frozenset(
        {
            _S.STARTING,
            _S.CLAIMING,
            _S.RUNNING,
            _S.RESTARTING,
            _S.STOPPING,
            _S.STOPPED,
            _S.FINISHED,
            _S.SUPERSEDED,
            _S.FAILED,
        }
    ),
    _S.STOPPING: frozenset({_S.STOPPED, _S.SUPERSEDED, _S.FAILED}),
    _S.STOPPED: frozenset(),
    _S.FINISHED: frozenset(),
    _S.SUPERSEDED: frozenset(),
    _S.FAILED: frozenset(),
}


class IllegalTransition(AssertionError):
    """A transition that is not in the table: a defect of Clonos."""


class StateMachine:
    """Holds the driver's state, and checks every change against the table of transitions."""

    def __init__(self) -> None:
        self.state = DriverState.STARTING

    def to(self, state: DriverState) -> None:
        """Change to `state`; raises `IllegalTransition` if the table does not allow that."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"{self.state} → {state}")
        self.state = state
