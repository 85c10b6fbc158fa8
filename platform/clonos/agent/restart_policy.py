"""Decides when an agent restarts a run's driver: counts consecutive failures and computes the back-off."""

from __future__ import annotations

from datetime import UTC, datetime

from clonos.agent.directories import RunRecord
from clonos.agent.driver_status import DriverStatus
from clonos.errors import RestartsExhausted
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
