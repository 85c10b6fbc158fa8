"""Decides why a run's driver ended, and whether and when the agent starts another: failures and the back-off."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from clonos.agent.directories import RunRecord
from clonos.agent.driver_status import DriverStatus
from clonos.driver.states import DriverState
from clonos.errors import BY_EXIT_CODE, BY_SLUG, ClonosError, DriverCrashed, RestartsExhausted
from clonos.resources.failures import failure_of, reported_failure
from clonos.resources.hosts import RunRestartPolicy, RunSpec
from clonos.resources.jobs import Failure


def is_idle_pool_driver(record: RunRecord, status: DriverStatus) -> bool:
    """Whether the driver is a former pool driver that has not begun with the job: its failure does not count."""
    return bool(record.pool_driver) and status.heartbeat_at() is None


def is_healthy(policy: RunRestartPolicy, record: RunRecord, status: DriverStatus) -> bool:
    """Whether the attempt resets the count of failures: it finished an epoch, or has run for `reset_after_s`."""
    return status.progressed or _age_s(record.driver_since or record.started) >= policy.reset_after_s


def failures_with_this_attempt(policy: RunRestartPolicy, record: RunRecord, status: DriverStatus) -> int:
    """`RunRecord.consecutive_failures` after this attempt fails; an idle pool driver does not count."""
    if is_idle_pool_driver(record, status):
        return record.consecutive_failures
    return 1 + (0 if is_healthy(policy, record, status) else record.consecutive_failures)


def failures_before_attempt(spec: RunSpec, record: RunRecord) -> int:
    """Return the failures before an attempt that starts or is promoted now; a first driver continues the job's."""
    if spec.standby or record.driver_since is not None:
        return record.consecutive_failures
    return spec.restart.earlier_failures


def pause_s(policy: RunRestartPolicy, consecutive_failures: int) -> float:
    """Seconds until the next attempt: exponential back-off, and at least the time for a standby to take over."""
    doublings = min(max(0, consecutive_failures - 1), 30)
    backoff_ms: int = min(policy.initial_backoff_ms * 2**doublings, policy.max_backoff_ms)
    return max(backoff_ms / 1000, policy.takeover_wait_s)


def exhausted(consecutive_failures: int, last: Failure | None) -> RestartsExhausted:
    """Return the error of a run that may have no further attempt; `last` is the failure of the newest attempt."""
    reason = last.what if last is not None else "it stopped although its desired state is RUNNING"
    return RestartsExhausted(f"The driver failed {consecutive_failures} times in a row; last: {reason}")


def is_older_than(record: RunRecord, age_s: float) -> bool:
    """Whether the attempt started longer ago than `age_s` seconds."""
    return _age_s(record.started) > age_s


def _age_s(since: datetime | None) -> float:
    return (datetime.now(UTC) - since).total_seconds() if since is not None else 0.0


@dataclass(frozen=True)
class AttemptOutcome:
    """The outcome of an attempt: why its driver exited, and whether to start another attempt."""

    # Exit code of the driver; None: unknown; negative: minus the number of the signal that killed it.
    exit_code: int | None
    failure: Failure | None  # None if the driver exited as intended
    retry: bool  # whether another attempt can succeed

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
