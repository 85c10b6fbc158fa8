"""The newest attempt of a run: its record on disk, its driver process and what the driver reported."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from clonos.agent import restart_policy
from clonos.agent.artifacts import Artifacts
from clonos.agent.directories import RunDirectory
from clonos.agent.driver_status import DriverStatus
from clonos.agent.memory import MemoryLimits
from clonos.agent.process import DriverProcess, find_driver, identity, kill_all
from clonos.agent.settings import AgentSettings
from clonos.agent.warm_pool import WarmPool
from clonos.driver.states import DriverState
from clonos.resources.hosts import RunSpec
from clonos.standby.states import StandbyState

_log = structlog.get_logger("clonos.agent")
# A pool driver that starts a job touches the event file each second until its first event.
_FIRST_EVENT_S: Final = 30.0
# Longest time until that event: it imports the job's code.
_IMPORT_S: Final = 180.0
# Longest time until the first event of a standby that is not from the pool.
_START_S: Final = 300.0
# A promoted standby claims the log within a second. A transaction coordinator that does not answer delays control, then
# the lanes, by at most 34 s each; then the driver waits for Kafka or restarts.
_CLAIM_S: Final = 90.0
_BEFORE_CLAIM: Final = frozenset({None, DriverState.STARTING, DriverState.CLAIMING})
_WAITING: Final = frozenset({StandbyState.READY, StandbyState.STALE})
_STANDING_BY: Final = _WAITING | {StandbyState.STARTING, StandbyState.WARMING}
_ALIVE: Final = frozenset({DriverState.RUNNING, DriverState.RESTARTING, DriverState.WAITING, DriverState.STOPPING})
# A longer pause between two checks counts as this: the agent or the whole host was suspended, not only the driver.
_LONGEST_CHECK_INTERVAL_S: Final = 3.0


class ResponsivenessTimer:
    """Measures how long a driver has been unresponsive, without the time in which the agent itself was suspended.

    It is unresponsive after `limit_s` without a heartbeat; 0: never.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._last_heartbeat: float | None = None
        self._checked_at = time.monotonic()
        self._unresponsive_s = 0.0

    @property
    def silent(self) -> bool:
        """Whether the driver has sent no heartbeat yet."""
        return self._last_heartbeat is None

    def expired(self, heartbeat: float | None) -> bool:
        """Update the timer with a value that each heartbeat changes; returns whether the driver exceeds the limit."""
        now = time.monotonic()
        elapsed_s, self._checked_at = now - self._checked_at, now
        if heartbeat is None or heartbeat != self._last_heartbeat:
            self._last_heartbeat, self._unresponsive_s = heartbeat, 0.0
        else:
            self._unresponsive_s += min(elapsed_s, _LONGEST_CHECK_INTERVAL_S)
        return 0 < self._limit_s < self._unresponsive_s


@dataclass(frozen=True)
class HostContext:
    """The settings and objects of an agent that the supervisors of all its runs share."""

    settings: AgentSettings  # settings of the agent
    artifacts: Artifacts  # the agent's copies of job code
    memory: MemoryLimits  # memory limits of drivers
    pool: WarmPool  # the agent's pool drivers
    changed: Callable[[], None]  # called when there is a change to report at once
    failed: Callable[[], None]  # called in its place when a driver failed that another may replace
    # Returns whether the control plane has been unreachable for longer than the host's lease.
    is_isolated: Callable[[], bool]


class RunAttempt:
    """The newest attempt of a run: its record on disk and its driver, which an earlier agent may have started."""

    def __init__(self, context: HostContext, directory: RunDirectory, on_exit: Callable[[], None]) -> None:
        self._context = context
        self.directory = directory
        self._on_exit = on_exit
        self._timer = ResponsivenessTimer(context.settings.driver_heartbeat_timeout_s)
        self._generation = 0
        self.record = directory.record()  # the record of the run, as on disk
        self.status = DriverStatus(directory.events, self.record.events_offset)  # what the driver's events report
        self.process: DriverProcess | None = None  # the driver's process; None while there is none

    @property
    def generation(self) -> int:
        """Generation of the newest claim of all attempts of the run."""
        self._generation = max(self._generation, self.status.generation)
        return self._generation

    @property
    def is_idle_pool_driver(self) -> bool:
        """Whether the driver came from the pool and has not started the job yet."""
        return restart_policy.is_idle_pool_driver(self.record, self.status)

    @property
    def is_waiting_standby(self) -> bool:
        """Whether the driver is a standby that can be promoted."""
        return self.status.standby in _WAITING

    @property
    def is_alive(self) -> bool:
        """Whether the driver has started up: it works, or it waits as a standby."""
        return self.driver_state in _ALIVE or self.driver_state in _WAITING

    @property
    def driver_state(self) -> str | None:
        """The state that the driver reported last: as a standby, until its promotion."""
        state, standby = self.status.state, self.status.standby
        # A standby that waited for Kafka at its start has reported STARTING again.
        stands_by = self.record.standby and standby in _STANDING_BY and state == DriverState.STARTING
        return standby if stands_by else state or standby

    def write(self, **fields: Any) -> None:
        """Change fields of the run's record, first on disk, then in memory."""
        record = self.record.model_copy(update=fields)
        self.directory.folder.mkdir(parents=True, exist_ok=True)
        self.directory.write_record(record)
        self.record = record
        self._context.changed()

    def begin(self, spec: RunSpec) -> None:
        """Record the start of the run's next attempt, before its driver is started.

        An agent that restarts after a crash searches for the driver of a recorded attempt.
        """
        start = self.directory.events.stat().st_size
        now = datetime.now(UTC)
        self.write(
            attempt=self.record.attempt + 1,
            started=now,
            pid=None,
            identity="",
            pool_driver="",
            events_offset=start,
            ended=None,
            standby=spec.standby,
            consecutive_failures=restart_policy.failures_before_attempt(spec, self.record),
            driver_since=None if spec.standby else now,
        )
        self.status = DriverStatus(self.directory.events, start)

    def watch(self, pid: int, identity_: str) -> None:
        """Supervise the process as the attempt's driver, by its `identity`; `ProcessLookupError` if it has exited."""
        self.process = DriverProcess(pid, identity_, self._on_exit)
        self._timer = ResponsivenessTimer(self._context.settings.driver_heartbeat_timeout_s)
        self.write(pid=pid, identity=identity_)

    async def adopt(self) -> bool:
        """Supervise the driver that an earlier agent process started for the attempt; returns whether it runs."""
        pid, known = self.record.pid, self.record.identity
        if pid is None:
            # The earlier agent was killed between the start of the driver and the write of its id.
            pid = await asyncio.to_thread(find_driver, self.directory.run, self.record.attempt)
            known = (identity(pid) or "") if pid is not None else ""
        if pid is None or not known or identity(pid) != known:
            return False
        try:
            self.watch(pid, known)
        except ProcessLookupError:
            return False
        _log.info("driver-adopted", run=self.directory.run, pid=pid)
        self._context.changed()
        return True

    def unresponsive_s(self) -> float | None:
        """Return the limit in seconds that an unresponsive driver has exceeded; None if the driver responds."""
        if self._timer.expired(self.status.heartbeat_at()):
            return self._context.settings.driver_heartbeat_timeout_s
        if self.is_idle_pool_driver:
            if restart_policy.is_older_than(self.record, _IMPORT_S):
                return _IMPORT_S
            silent_s = time.time() - self.status.touched_at()
            if silent_s > _FIRST_EVENT_S and restart_policy.is_older_than(self.record, _FIRST_EVENT_S):
                return _FIRST_EVENT_S
        elif self.record.standby and self._timer.silent and restart_policy.is_older_than(self.record, _START_S):
            return _START_S
        if self._hangs_at_promotion():
            return _CLAIM_S
        return None

    def _hangs_at_promotion(self) -> bool:
        """Whether a promoted standby has not claimed the log for `_CLAIM_S`, although it reports heartbeats."""
        record, status = self.record, self.status
        if record.standby or record.driver_since is None or status.standby is None or status.generation:
            return False
        status.read()
        began = max(record.driver_since.timestamp(), status.changed_at)
        return status.state in _BEFORE_CLAIM and not status.generation and time.time() - began > _CLAIM_S

    async def kill(self) -> None:
        """Kill all processes of the attempt that still run, and remove its temporary files."""
        run, record = self.directory.run, self.record
        killed = await asyncio.to_thread(kill_all, run, record.pid, record.identity)
        if record.pool_driver:
            killed += await asyncio.to_thread(self._context.pool.kill_remaining, record.pool_driver)
        await asyncio.to_thread(self.directory.clear)
        self._context.memory.remove(run)
        if killed:
            _log.info("processes-killed", run=run, count=killed)
