"""The states of a driver, and the one table of transitions between them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class DriverState(StrEnum):
    """What a driver is doing."""

    STARTING = "STARTING"  # JVM, session, job function
    CLAIMING = "CLAIMING"  # becoming the owner of the causal log
    RECONCILING = "RECONCILING"  # checkpoint against log, source retention
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"  # a query failed; backing off in the warm session
    STOPPING = "STOPPING"  # asked to stop; finishing the epoch
    STOPPED = "STOPPED"
    FINISHED = "FINISHED"  # a bounded run has worked through its input
    SUPERSEDED = "SUPERSEDED"
    FAILED = "FAILED"


_S = DriverState
TRANSITIONS: Final[dict[DriverState, frozenset[DriverState]]] = {
    _S.STARTING: frozenset({_S.CLAIMING, _S.STOPPED, _S.FAILED}),
    _S.CLAIMING: frozenset({_S.RECONCILING, _S.RESTARTING, _S.SUPERSEDED, _S.STOPPED, _S.FAILED}),
    _S.RECONCILING: frozenset({_S.RUNNING, _S.RESTARTING, _S.SUPERSEDED, _S.STOPPED, _S.FAILED}),
    _S.RUNNING: frozenset({_S.RESTARTING, _S.STOPPING, _S.FINISHED, _S.SUPERSEDED, _S.FAILED}),
    _S.RESTARTING: frozenset({_S.CLAIMING, _S.STOPPED, _S.SUPERSEDED, _S.FAILED}),
    _S.STOPPING: frozenset({_S.STOPPED, _S.SUPERSEDED, _S.FAILED}),
    _S.STOPPED: frozenset(),
    _S.FINISHED: frozenset(),
    _S.SUPERSEDED: frozenset(),
    _S.FAILED: frozenset(),
}


class IllegalTransition(AssertionError):
    """A transition that the table does not hold: a defect of Clonos."""


class StateMachine:
    """Holds the state; every change goes through the table."""

    def __init__(self) -> None:
        self.state = DriverState.STARTING

    def to(self, state: DriverState) -> None:
        """Change state.

        Raises:
            IllegalTransition: The table does not allow it.
        """
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"{self.state} → {state}")
        self.state = state

    @property
    def terminal(self) -> bool:
        """Whether no transition leads out."""
        return not TRANSITIONS[self.state]
