"""Supervises one run: brings its driver to the desired state.

The supervision is level-triggered: each step compares the newest run specification with the newest attempt, so that a
missed specification does not matter.

======================== ============================== ============================
desired state            driver runs                    no driver
======================== ============================== ============================
``RUNNING``              promote, or check its health   start it, after the back-off
``STOPPED``              stop it                        record that the run is final
``ABSENT``               kill it                        remove the run
======================== ============================== ============================
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import structlog
import yaml

from clonos.agent import launching, restart_policy
from clonos.agent.capacity import measure_checkpoint
from clonos.agent.directories import RunDirectory
from clonos.agent.environment import driver_environment
from clonos.agent.priority import Priority, SessionPriority
from clonos.agent.process import identity
from clonos.agent.restart_policy import AttemptOutcome, outcome_of
from clonos.agent.run_attempt import HostContext, RunAttempt
from clonos.agent.users import driver_user, folder_of, give_folder
from clonos.deadline import Deadline, is_set_within
from clonos.driver.states import DriverState
from clonos.errors import ClonosError, DriverUnresponsive, EnvironmentFault, StoppedWithAgent, StopTimedOut
from clonos.jobs.packages import install, lock_of, read_lock
from clonos.jobs.spec import JobSpec
from clonos.resources.failures import failure_of, reported_failure
from clonos.resources.hosts import RunReport, RunSpec
from clonos.resources.jobs import Failure, StopMode
from clonos.resources.spec_secrets import ClusterSecrets, from_folder, resolved, with_secrets
from clonos.standby.promotion import promote
from clonos.standby.states import StandbyState
from clonos.telemetry.events import HEARTBEAT_S

Desired = Literal["WAIT", "RUNNING", "STOPPED", "ABSENT"]

_log = structlog.get_logger("clonos.agent")
_RETRY_S: Final = 1.0
_END_TRANSACTIONS_S: Final = 15.0
_POLL_S: Final = 0.02
# A standby opens its mailbox before its session starts: one that reads no promotion for this time hangs.
_RECEIVE_S: Final = 60.0
# A standby reports each second or so that the driver makes no progress.
_STALLED_REPORT_S: Final = 5.0
# A takeover has published by then, or its job has a backlog and competes with the other jobs.
_TAKEOVER_S: Final = 5.0


class _Prepared(NamedTuple):
    """What a driver starts with: the job and its Spark cluster, both with their secrets."""

    job: JobSpec
    cluster: ClusterSecrets | None
    packages: Path | None  # folder of the job's own packages


class RunSupervisor:
    """Brings the driver of one run to its desired state: starts, restarts, promotes, stops and kills it."""

    def __init__(self, context: HostContext, directory: RunDirectory) -> None:
        self._context = context
        self._settings = context.settings
        self._directory = directory
        self._wake = asyncio.Event()
        self._attempt = RunAttempt(context, directory, self._wake.set)
        self._spec: RunSpec | None = None
        self._removed = False
        self._agent_exits = False
        self._stopped_with_agent: Failure | None = None
        self._stopping = False
        self._next_start_at = 0.0
        self._blocked: Failure | None = None
        self._packages: Path | None = None
        self._unresponsive: Failure | None = None
        self._stop_timed_out: Failure | None = None
        self._outcome: AttemptOutcome | None = None
        self._checkpoint_bytes: dict[str, int] | None = None
        self._priority = SessionPriority()
        self._undelivered_since: float | None = None  # since when the standby does not read its promotion
        self._log = _log.bind(run=directory.run)

    def apply(self, spec: RunSpec) -> None:
        """Set the newest specification of the run; its field `desired` is the run's desired state."""
        if spec != self._spec:
            self._spec = spec
            self._wake.set()

    def remove(self) -> None:
        """Kill the driver, because the host's work no longer contains the run; `supervise` returns afterwards."""
        self._removed = True
        self._wake.set()

    def stop_for_exit(self) -> None:
        """Stop the driver because the agent exits, although the run's desired state is RUNNING."""
        self._agent_exits = True
        self._stopped_with_agent = failure_of(StoppedWithAgent("The driver was stopped with its agent."))
        self._wake.set()

    @property
    def pool_driver(self) -> str:
        """Name of the pool driver that became the run's driver; empty if the driver was started for the run."""
        return self._attempt.record.pool_driver

    @property
    def running(self) -> bool:
        """Whether the run has a live driver process."""
        return self._attempt.process is not None

    async def measure(self) -> None:
        """Measure the sizes of the job's checkpoints on this host, for the next report."""
        if self.running and self._spec is not None:
            self._checkpoint_bytes = await asyncio.to_thread(measure_checkpoint, self._spec, self._settings.home)

    def report(self) -> RunReport:
        """Return the state of the run, for the next heartbeat."""
        attempt, record, spec = self._attempt, self._attempt.record, self._spec
        attempt.status.read()
        state: Literal["PENDING", "STARTING", "RUNNING", "STOPPING", "EXITED"]
        exit_code, failure = record.exit_code, self._blocked or record.failure
        consecutive_failures = record.consecutive_failures
        if self._outcome is not None and self._outcome.retry and not self._stopping:
            state, exit_code, failure = "EXITED", self._outcome.exit_code, self._outcome.failure
            if spec is not None:
                consecutive_failures = restart_policy.failures_with_this_attempt(spec.restart, record, attempt.status)
        elif attempt.process is not None:
            state = "STOPPING" if self._stopping else "RUNNING" if attempt.is_alive else "STARTING"
            if attempt.status.state == DriverState.WAITING and attempt.status.waiting_event is not None:
                failure = reported_failure(attempt.status.waiting_event)
            if self._stops_with_agent:
                state, failure = "STOPPING", self._stopped_with_agent
            if spec is not None and restart_policy.is_healthy(spec.restart, record, attempt.status):
                consecutive_failures = 0  # the next failure is the first
        else:
            state = "EXITED" if record.ended is not None else "PENDING"
        return RunReport(
            run=self._directory.run,
            state=state,
            driver_state=attempt.driver_state,
            attempts=(spec.earlier_attempts if spec else 0) + record.attempt,
            consecutive_failures=consecutive_failures,
            pid=attempt.process.pid if attempt.process else None,
            generation=attempt.generation,
            exit_code=exit_code,
            failure=failure,
            final=record.final,
            checkpoint_bytes=self._checkpoint_bytes,
            started_at=record.started,
            ended_at=record.ended,
        )

    async def supervise(self) -> None:
        """Supervise the run until it is removed. A cancellation leaves the driver running."""
        try:
            while not (self._removed and not self.running and not self._attempt.record.open):
                try:
                    await self._step()
                except (OSError, ClonosError) as error:
                    # A full disk, or an unavailable artifact: the desired state stays, so retry.
                    self._report_blocked(error)
                    self._wake.clear()
                    await self._wait(_RETRY_S * random.uniform(0.5, 1.5))
            with contextlib.suppress(OSError):
                await self._attempt.kill()
        finally:
            if self._attempt.process is not None:
                self._attempt.process.detach()

    @property
    def _desired(self) -> Desired:
        if self._removed:
            return "ABSENT"
        return self._spec.desired if self._spec is not None else "WAIT"

    @property
    def _stops_with_agent(self) -> bool:
        return self._desired == "RUNNING" and self._agent_exits

    @property
    def _may_run(self) -> bool:
        return self._desired == "RUNNING" and not self._agent_exits

    async def _step(self) -> None:
        self._wake.clear()
        process, record = self._attempt.process, self._attempt.record
        if process is not None:
            await (self._finish(process.exit_code) if process.exited else self._step_with_driver())
        elif record.open and not await self._attempt.adopt():
            await self._finish(None)
        elif record.open:
            pass  # adopted
        elif self._desired in ("STOPPED", "ABSENT") and not record.final:
            self._attempt.write(ended=record.ended or datetime.now(UTC), final=True)
        elif self._may_run and not record.final:
            pause_s = self._next_start_at - time.monotonic()
            await (self._wait(pause_s) if pause_s > 0 else self._start())
        elif not self._removed:
            await self._wait()

    async def _step_with_driver(self) -> None:
        if self._desired == "ABSENT":
            await self._attempt.kill()
        elif self._desired == "STOPPED" or self._agent_exits:
            await self._stop()
        elif (unresponsive_s := self._attempt.unresponsive_s()) is not None:
            await self._kill_unresponsive(unresponsive_s)
        elif self._must_promote():
            await self._promote()
            return
        else:
            self._lower_priority()
        await self._wait(HEARTBEAT_S)

    def _lower_priority(self) -> None:
        """Lower the priority of a standby when it is READY, and again when its takeover is over."""
        record = self._attempt.record
        since = record.driver_since
        if since is None:
            if self._attempt.is_waiting_standby:
                self._set_priority(Priority.WAITING)
        elif since != record.started and (datetime.now(UTC) - since).total_seconds() > _TAKEOVER_S:
            self._set_priority(Priority.DRIVER)

    def _set_priority(self, priority: Priority) -> None:
        if self._attempt.process is not None:
            self._priority.set(self._attempt.process.pid, priority)

    async def _wait(self, timeout_s: float | None = None) -> None:
        """Wait until there is a change."""
        await is_set_within(self._wake, timeout_s)

    async def _start(self) -> None:
        spec, settings, attempt = self._spec, self._settings, self._attempt
        assert spec is not None
        prepared = await self._prepare(spec)
        if prepared is None:
            return
        # After a pool driver that never started the job, the next one might not either.
        skip_pool = attempt.is_idle_pool_driver
        # An adoption holds for one claim: a driver that another platform has fenced must not take the log back.
        claimed = attempt.generation > 0
        attempt.begin(spec)
        command = launching.driver_command(settings, self._directory, spec, claimed=claimed)
        # A pool driver has imported the host's packages already.
        skip_pool = skip_pool or prepared.packages is not None
        use_pool = not skip_pool and launching.may_use_pool(settings, spec, prepared.job, attempt.record)
        if use_pool and await launching.launch_in_pool(settings, self._context.pool, attempt, command):
            self._blocked = None
            self._log.info("pool-driver-launched", pid=attempt.record.pid, attempt=attempt.record.attempt)
            return
        try:
            user = driver_user(settings, spec.owner_number)
            environment = prepared.cluster.environment if prepared.cluster else {}
            pid = launching.launch_process(settings, attempt, spec, command, user, environment, prepared.packages)
        except OSError as error:
            fault = EnvironmentFault(f"The driver cannot be started: {error}.", kept="nothing was started.")
            self._record_outcome(AttemptOutcome(None, failure_of(fault), retry=True))
            return
        # The agent is its parent: a driver that has exited already stays a zombie until the agent reaps it.
        attempt.watch(pid, identity(pid) or "")
        launching.limit_memory(settings, self._context.memory, self._directory.run, pid)
        self._blocked = None
        attempts = spec.earlier_attempts + attempt.record.attempt
        self._log.info("driver-started", job=spec.name, pid=pid, attempt=attempts)

    async def _prepare(self, spec: RunSpec) -> _Prepared | None:
        """Install the job's code and write its specification and cluster; None if the run must not start."""
        main = spec.spec.spec.main or "job.py"
        user = driver_user(self._settings, spec.owner_number)
        if user is not None:
            self._directory.close()
        try:
            if not await self._while_may_run(self._install(spec.artifact, main)):
                return None
            secrets = self._settings.secrets_folder
            job = resolved(spec.spec, from_folder(secrets, spec.owner))
            cluster = with_secrets(spec.cluster, secrets) if spec.cluster is not None else None
        except ClonosError as error:
            if error.retry:
                raise
            self._blocked = None
            self._attempt.write(ended=datetime.now(UTC), failure=failure_of(error), final=True)
            return None
        raw = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
        raw["spec"] = {**raw.get("spec", {}), "main": f"code/{main}"}
        described = cluster.cluster.model_dump_json(by_alias=True) if cluster is not None else ""
        self._directory.create(yaml.safe_dump(raw, sort_keys=False), user, cluster=described)
        if user is not None:
            jobs = self._settings.home.absolute() / "jobs"
            checkpoint = job.spec.checkpoint
            folder = folder_of(checkpoint) if checkpoint else jobs / spec.name
            if folder is not None and folder.is_relative_to(jobs / spec.name):
                give_folder(jobs, spec.name, user)
        return _Prepared(job, cluster, self._packages)

    async def _install(self, artifact: str, main: str) -> None:
        """Install the job's code, and its own packages if it has a lock."""
        await self._context.artifacts.install(artifact, main, self._directory.code)
        lock = lock_of(self._directory.code / main)
        home = self._settings.home.absolute()
        self._packages = None if lock is None else await asyncio.to_thread(install, read_lock(lock), home)

    async def _while_may_run(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do `work`, unless the desired state changes; whether it was completed and the run may still start."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._wake.set())
        try:
            while not task.done() and self._may_run:
                await self._wait()
                self._wake.clear()
        finally:
            self._wake.set()
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled():
            return False
        task.result()
        return self._may_run

    def _must_promote(self) -> bool:
        if not self._attempt.record.standby or self._spec is None:
            return False
        if not self._spec.standby:
            return True
        if self._must_self_promote(self._spec):
            self._log.warning("standby-self-promotion", pid=self._attempt.record.pid)
            return True
        return False

    def _must_self_promote(self, spec: RunSpec) -> bool:
        """Whether the control plane is unreachable, and the standby reports that the job's driver makes no progress."""
        if not spec.spec.spec.standby.self_promote_after_s or not self._context.is_isolated():
            return False
        status = self._attempt.status
        status.read()
        return self._attempt.is_waiting_standby and time.time() - status.stalled_at < _STALLED_REPORT_S

    async def _promote(self) -> None:
        """Promote the standby. If it does not read its mailbox yet, the next step tries again."""
        attempt, spec = self._attempt, self._spec
        assert attempt.process is not None
        assert spec is not None
        received = attempt.status.standby in (StandbyState.PROMOTING, StandbyState.PROMOTED)
        self._set_priority(Priority.TAKEOVER)  # before the promotion: new threads inherit it
        if received or promote(self._directory.promotion, accept_new_code=spec.accept_new_code):
            self._log.info("standby-promoted", pid=attempt.process.pid)
            failures = restart_policy.failures_before_attempt(spec, attempt.record)
            attempt.write(standby=False, consecutive_failures=failures, driver_since=datetime.now(UTC))
            self._undelivered_since = None
            return
        self._undelivered_since = self._undelivered_since or time.monotonic()
        if time.monotonic() - self._undelivered_since > _RECEIVE_S:
            self._undelivered_since = None
            await self._kill_unresponsive(_RECEIVE_S)
        attempt.status.read()
        await self._wait(_POLL_S)

    async def _kill_unresponsive(self, unresponsive_s: float) -> None:
        """Report the failure first, so that a standby can take over, then kill the driver."""
        if self._unresponsive is None:
            error = DriverUnresponsive(f"The driver has been unresponsive for {unresponsive_s:g} s.")
            self._unresponsive = failure_of(error)
            self._outcome = AttemptOutcome(None, self._unresponsive, retry=True)
            self._log.warning("driver-unresponsive", pid=self._attempt.record.pid, why=error.what)
            self._context.failed()
        await self._attempt.kill()

    async def _stop(self) -> None:
        """Stop the driver, by force after the timeout; returns once it has exited."""
        process = self._attempt.process
        assert process is not None
        self._stopping = True
        self._context.changed()
        started = time.monotonic()
        while not process.exited:
            spec = self._spec
            force = self._desired == "ABSENT" or (
                spec is not None and spec.desired == "STOPPED" and spec.stop_mode is StopMode.FORCE
            )
            timeout_s = self._settings.stop_grace_s if self._agent_exits else spec.stop_timeout_s if spec else 0.0
            left_s = started + timeout_s - time.monotonic()
            if force or left_s <= 0:
                if not (force or self._agent_exits or self._attempt.status.state == DriverState.STOPPED):
                    what = f"The driver did not stop within {timeout_s:g} s and was killed: its epoch is in doubt."
                    self._stop_timed_out = failure_of(StopTimedOut(what))
                await self._attempt.kill()
                await self._wait(_RETRY_S)
            else:
                process.terminate()
                await self._wait_for_stop(left_s)
            self._wake.clear()
        self._wake.set()

    async def _wait_for_stop(self, timeout_s: float) -> None:
        """Wait until there is a change. The commit of the last epoch is reported at once: a standby may wait for it."""
        status, deadline = self._attempt.status, Deadline(timeout_s)
        while status.state != DriverState.STOPPED and not deadline.passed():
            if await is_set_within(self._wake, _POLL_S):
                return
            status.read()
            if status.state == DriverState.STOPPED:
                self._context.changed()
        await self._wait(deadline.left_s())

    async def _finish(self, exit_code: int | None) -> None:
        """Handle the driver's exit: kill the processes that it left, and decide whether another attempt follows."""
        self._attempt.status.read()
        self._outcome = self._outcome_of(exit_code)
        # A standby on another host must not wait until the last process has exited.
        if self._outcome.retry and self._may_run:
            self._context.failed()
        else:
            self._context.changed()
        await self._attempt.kill()
        self._attempt.status.read()
        outcome = self._outcome_of(exit_code).with_time_of(self._outcome.failure)
        if self._leaves_transactions(outcome):
            await self._end_transactions()
        self._record_outcome(outcome)

    def _leaves_transactions(self, outcome: AttemptOutcome) -> bool:
        """Whether a killed driver may have left transactions open, and no other driver of the job follows."""
        killed = outcome.exit_code is None or outcome.exit_code < 0
        claimed = self._attempt.status.generation > 0 and not self._attempt.record.standby
        return killed and claimed and self._desired == "STOPPED" and not self._agent_exits

    async def _end_transactions(self) -> None:
        """End the transactions of the killed driver; readers would wait for them until they time out."""
        if self._spec is None or not self._settings.ending_command:
            return
        values = {"{job}": self._spec.name, "{platform}": self._spec.platform}
        command = [values.get(argument, argument) for argument in self._settings.ending_command]
        environment = driver_environment(self._settings, self._directory, self._attempt.record.attempt)
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
        )
        try:
            await asyncio.wait_for(process.wait(), _END_TRANSACTIONS_S)
        except TimeoutError:
            process.kill()
            await process.wait()
        self._log.info("transactions-ended", job=self._spec.name, exit_code=process.returncode)

    def _outcome_of(self, exit_code: int | None) -> AttemptOutcome:
        if self._unresponsive is not None:
            return AttemptOutcome(exit_code, self._unresponsive, retry=True)
        outcome = outcome_of(exit_code, self._attempt.status)
        if self._attempt.is_idle_pool_driver:
            return AttemptOutcome(exit_code, outcome.failure, retry=True)
        return outcome

    def _record_outcome(self, outcome: AttemptOutcome) -> None:
        attempt = self._attempt
        policy = self._spec.restart if self._spec is not None else None
        failure, final, consecutive_failures = outcome.failure, not outcome.retry, 0
        if self._stopping or self._desired in ("STOPPED", "ABSENT"):
            # Killed or stopped as requested: no failure.
            failure = failure if (outcome.exit_code or 0) > 0 else self._stop_timed_out
            final = not self._agent_exits
            if self._stops_with_agent and failure is None:
                failure = self._stopped_with_agent
        elif outcome.retry and policy is not None:
            consecutive_failures = restart_policy.failures_with_this_attempt(policy, attempt.record, attempt.status)
            if consecutive_failures > policy.attempts:
                final = True
                failure = failure_of(restart_policy.exhausted(consecutive_failures, failure))
            self._next_start_at = time.monotonic() + restart_policy.pause_s(policy, consecutive_failures)
        attempt.process = self._outcome = self._unresponsive = self._stop_timed_out = None
        self._stopping = False
        attempt.write(
            ended=datetime.now(UTC),
            exit_code=outcome.exit_code,
            failure=failure,
            final=final,
            consecutive_failures=consecutive_failures,
        )
        self._log.info("driver-ended", pid=attempt.record.pid, exit_code=outcome.exit_code, final=final)

    def _report_blocked(self, error: OSError | ClonosError) -> None:
        failure = failure_of(error if isinstance(error, ClonosError) else ClonosError(f"This host: {error}."))
        if self._blocked is None or (failure.error, failure.what) != (self._blocked.error, self._blocked.what):
            self._log.warning("run-blocked", why=failure.what)
            self._blocked = failure
            self._context.changed()
