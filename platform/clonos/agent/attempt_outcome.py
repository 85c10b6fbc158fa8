"""The outcome of an attempt: why its driver exited, and whether another attempt can succeed."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace

from clonos.agent.driver_status import DriverStatus
from clonos.driver.states import DriverState
from clonos.errors import BY_EXIT_CODE, BY_SLUG, ClonosError, DriverCrashed
from clonos.resources.failures import failure_of, reported_failure
from clonos.resources.jobs import Failure


@dataclass(frozen=True)
class AttemptOutcome:
    """The outcome of an attempt: why its driver exited, and whether to start another attempt.

    Attributes:
        exit_code: Exit code of the driver; None: unknown; negative: minus the number of the signal that killed it.
        failure: None if the driver exited as intended.
        retry: Whether another attempt can succeed.
    """

    exit_code: int | None
    failure: Failure | None
    retry: bool

    def with_time_of(self, earlier: Failure | None) -> AttemptOutcome:
        """Return a copy of the outcome whose failure has the time of the failure `earlier`, if both failures exist."""
        if self.failure is None or earlier is None:
            return self
        return replace(self, failure=self.failure.model_copy(update={"at": earlier.at}))


def outcome_of(exit_code: int | None, status: DriverStatus) -> AttemptOutcome:
    """Derive the outcome from the exit code and the driver's events, which are read to the end.

    `exit_code` is None if the process was not this agent's child: then it is derived from the events.
    """
    if exit_code is None:
        exit_code = _reported_exit_code(status)
    if exit_code == 0:
        state = status.summary.state if status.summary else status.state
        # It stopped without a request of this agent, and the run's desired state is RUNNING.
        return AttemptOutcome(0, None, retry=state != DriverState.FINISHED)
    if exit_code is None or exit_code < 0:
        return AttemptOutcome(exit_code, failure_of(DriverCrashed(_crash_text(exit_code))), retry=True)
    cls = BY_EXIT_CODE.get(exit_code, ClonosError)
    if status.failure_event is None:
        what = f"The driver exited with code {exit_code} without reporting a reason; see its log."
        return AttemptOutcome(exit_code, failure_of(cls(what)), retry=cls.retry)
    return AttemptOutcome(exit_code, reported_failure(status.failure_event), retry=cls.retry)


def _reported_exit_code(status: DriverStatus) -> int | None:
    if status.failure_event is not None:
        return BY_SLUG.get(status.failure_event.error, ClonosError).exit_code
    if status.summary is not None and status.summary.state in {DriverState.STOPPED, DriverState.FINISHED}:
        return 0
    return None


def _crash_text(exit_code: int | None) -> str:
    if exit_code is None:
        return "The driver exited without reporting a reason while no agent supervised it."
    try:
        return f"The driver was killed by {signal.Signals(-exit_code).name}."
    except ValueError:
        return f"The driver was killed by signal {-exit_code}."
