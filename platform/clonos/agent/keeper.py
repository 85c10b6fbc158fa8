"""Keeps one run as it is ordered: level-triggered, so that an order that was missed does not matter."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Final, Literal

import structlog
import yaml

from clonos.agent.artifacts import Artifacts
from clonos.agent.environment import driver_environment, given_environment
from clonos.agent.measuring import sizes
from clonos.agent.memory import MemoryLimits, join
from clonos.agent.place import RunPlace
from clonos.agent.pool import Pool, Spare
from clonos.agent.priority import aside, full_speed
from clonos.agent.process import DriverProcess, end_all, find, identity, launch
from clonos.agent.settings import AgentSettings
from clonos.agent.silence import Silence
from clonos.agent.told import Told
from clonos.agent.verdict import Verdict, judge
from clonos.agent.waiting import happens
from clonos.errors import ClonosError, DriverHung, EnvironmentFault, RestartsExhausted
from clonos.resources.failures import failure_of
from clonos.resources.hosts import RestartOrder, RunOrder, RunReport
from clonos.resources.jobs import Failure, StopMode
from clonos.resources.spec_secrets import from_folder, resolved
from clonos.runner.events import ALIVE_S
from clonos.runner.states import DriverState
from clonos.standby.offers import Given, fits
from clonos.standby.orders import promote
from clonos.standby.states import StandbyState

Goal = Literal["WAIT", "RUN", "STOP", "GONE"]

_log = structlog.get_logger("clonos.agent")
_AGAIN_S: Final = 1.0
_LISTENS_S: Final = 0.02
# A standby tells each second or so that the driver makes no progress.
_STALLED_S: Final = 5.0
# A spare that was given a run says that it lives well before.
_HEARD_S: Final = 30.0
_WAITING: Final = frozenset({StandbyState.READY, StandbyState.STALE})
_ALIVE: Final = frozenset({DriverState.RUNNING, DriverState.RESTARTING, DriverState.STOPPING})


class Keeper:
    """Keeps one run.

    Args:
        settings: The agent's.
        place: The run's folder.
        artifacts: Where its code comes from.
        memory: What limits its memory.
        changed: Called when there is something to report at once.
        alone: Whether the control plane is away for longer than a lease.
        pool: Has spares.
    """

    def __init__(
        self,
        settings: AgentSettings,
        place: RunPlace,
        artifacts: Artifacts,
        memory: MemoryLimits,
        changed: Callable[[], None],
        alone: Callable[[], bool],
        pool: Pool,
    ) -> None:
        self._settings = settings
        self._place = place
        self._alone = alone
        self._pool = pool
        self._artifacts = artifacts
        self._memory = memory
        self._changed = changed
        self._order: RunOrder | None = None
        self._forgotten = False
        self._leaving = False
        self._wake = asyncio.Event()
        self._record = place.record()
        self._told = Told(place.events, self._record.events_from)
        self._process: DriverProcess | None = None
        self._generation = 0
        self._stopping = False
        self._not_before = 0.0
        self._trouble: Failure | None = None
        self._verdict: Verdict | None = None
        self._silence = Silence(settings.silent_s)
        self._frozen: Failure | None = None
        self._sizes: dict[str, int] | None = None
        self._log = _log.bind(run=place.run)

    def take(self, order: RunOrder) -> None:
        """What is wanted now."""
        if order != self._order:
            self._order = order
            self._wake.set()

    def forget(self) -> None:
        """It is in no order any more: end it, and then `keep` ends."""
        self._forgotten = True
        self._wake.set()

    def leave(self) -> None:
        """The agent ends and takes the driver with it, although it is ordered to run."""
        self._leaving = True
        self._wake.set()

    @property
    def spare(self) -> str:
        """What its driver was before; empty: it was started for this run."""
        return self._record.spare

    @property
    def running(self) -> bool:
        """Whether there is a driver."""
        return self._process is not None

    async def measure(self) -> None:
        """Look how large its checkpoint is."""
        if self._process is not None and self._order is not None:
            self._sizes = await asyncio.to_thread(sizes, self._order, self._settings.home)

    def report(self) -> RunReport:
        """How the run is doing."""
        self._told.read()
        self._generation = max(self._generation, self._told.generation)
        record = self._record
        state: Literal["PENDING", "STARTING", "RUNNING", "STOPPING", "EXITED"]
        exit_code, failure, in_row = record.exit_code, self._trouble or record.failure, record.in_row
        if self._verdict is not None and self._verdict.again and not self._stopping:
            state, exit_code, failure = "EXITED", self._verdict.exit_code, self._verdict.failure
            in_row = self._falls(self._order.restart) if self._order is not None else in_row
        elif self._process is not None:
            alive = self._told.state in _ALIVE or (self._told.state is None and self._told.standby in _WAITING)
            state = "STOPPING" if self._stopping else "RUNNING" if alive else "STARTING"
            if self._order is not None and self._healthy(self._order.restart):
                in_row = 0  # whatever falls next is the first
        else:
            state = "EXITED" if record.ended is not None else "PENDING"
        return RunReport(
            run=self._place.run,
            state=state,
            driver_state=self._told.state or self._told.standby,
            attempts=(self._order.attempt_base if self._order else 0) + record.attempt,
            in_row=in_row,
            pid=self._process.pid if self._process else None,
            generation=self._generation,
            exit_code=exit_code,
            failure=failure,
            final=record.final,
            checkpoint_bytes=self._sizes,
            started_at=record.started,
            ended_at=record.ended,
        )

    async def keep(self) -> None:
        """Until the run is forgotten; what is cancelled leaves the driver alone."""
        try:
            while not (self._forgotten and self._process is None and not self._record.open):
                try:
                    await self._step()
                except (OSError, ClonosError) as error:
                    # Its disk is full, its code cannot be fetched: it stays ordered, so it is tried again.
                    self._hold_up(error)
                    self._wake.clear()
                    await self._wait(_AGAIN_S * random.uniform(0.5, 1.5))
            with contextlib.suppress(OSError):
                await self._end_rest()
        finally:
            if self._process is not None:
                self._process.leave()

    @property
    def _goal(self) -> Goal:
        if self._forgotten:
            return "GONE"
        return self._order.goal if self._order is not None else "WAIT"

    async def _step(self) -> None:
        self._wake.clear()
        goal = self._goal
        if self._process is None and self._record.open and not await self._adopt():
            await self._ended(None)
        elif self._process is not None and self._process.exited:
            await self._ended(self._process.exit_code)
        elif self._process is not None:
            if goal == "GONE":
                await self._end_rest()
            elif goal == "STOP" or self._leaving:
                await self._stop()
            elif self._record.standby and self._order is not None and not self._order.standby:
                await self._promote()
                return
            elif self._record.standby and self._must_help_itself():
                self._log.warning("standby-helps-itself", pid=self._record.pid)
                await self._promote()
                return
            elif self._silence.over(self._told.alive_at()) or self._deaf():
                await self._end_frozen()
            await self._wait(ALIVE_S)
        elif goal in ("STOP", "GONE") and not self._record.final:
            self._write(ended=self._record.ended or datetime.now(UTC), final=True)
        elif goal == "RUN" and not self._record.final and not self._leaving:
            pause = self._not_before - time.monotonic()
            await (self._wait(pause) if pause > 0 else self._start())
        elif not self._forgotten:
            await self._wait()

    async def _wait(self, seconds: float | None = None) -> None:
        """Until something changes."""
        await happens(self._wake, seconds)

    async def _start(self) -> None:
        order = self._order
        assert order is not None
        main = order.spec.spec.main or "job.py"
        try:
            if not await self._while_wanted(self._artifacts.place(order.artifact, main, self._place.code)):
                return
            whole = resolved(order.spec, from_folder(self._settings.secrets_folder))
        except ClonosError as error:
            if error.retry:
                raise
            self._trouble = None
            self._write(ended=datetime.now(UTC), failure=failure_of(error), final=True)
            return
        place, settings = self._place, self._settings
        spec = whole.model_dump(mode="json", by_alias=True, exclude_unset=True)
        spec["spec"] = {**spec.get("spec", {}), "main": f"code/{main}"}
        place.make(yaml.safe_dump(spec, sort_keys=False), settings.uid, settings.gid)
        attempt, begins = self._record.attempt + 1, place.events.stat().st_size
        drives = None if order.standby else datetime.now(UTC)
        cold = self._idle_spare  # the next one might not come to this job either, and takes a spare from others
        # Before the driver is there, so that an agent that comes after a crash looks for it.
        self._write(
            attempt=attempt,
            started=datetime.now(UTC),
            pid=None,
            identity="",
            spare="",
            events_from=begins,
            ended=None,
            standby=order.standby,
            in_row=self._falls_before(order),
            drives=drives,
        )
        self._told = Told(place.events, begins)
        paths = {"{spec}": str(place.spec), "{events}": str(place.events)}
        command = [paths.get(one, one) for one in settings.command]
        if order.standby:
            command += ["--standby", str(place.promotion)]
        if order.accept_code:
            command.append("--accept-new-code")
        if not cold and fits(whole.spec) and _plain(order, settings) and await self._given_to_spare(command, attempt):
            return
        try:
            pid = launch(
                _restored_first(order, place, command),
                directory=place.work,
                environment=driver_environment(settings, place, attempt),
                log=place.log,
                uid=settings.uid,
                gid=settings.gid,
            )
        except OSError as error:
            fault = EnvironmentFault(f"The driver cannot be started: {error}.", kept="nothing was started.")
            self._decide(Verdict(None, failure_of(fault), again=True))
            return
        if order.standby:
            aside(pid)
        # A driver that has ended already is still there for us, as its parent, until we ask how.
        self._watch(pid, identity(pid) or "")
        if settings.memory_limit_mb is not None and (group := self._memory.make(place.run, settings.memory_limit_mb)):
            join(group, pid)
        self._trouble = None
        self._log.info("driver-started", job=order.name, pid=pid, attempt=order.attempt_base + attempt)

    async def _given_to_spare(self, command: list[str], attempt: int) -> bool:
        """Have a spare be the driver, if there is one; whether it is."""
        spare = self._pool.take()
        if spare is None:
            return False
        try:
            # Before it hears of it: whoever looks after the run next finds a driver, or a process to end.
            self._write(pid=spare.pid, identity=spare.identity, spare=spare.name)
            if self._give(spare, command, attempt):
                return True
        except BaseException:
            await asyncio.to_thread(self._pool.end, spare)
            raise
        await asyncio.to_thread(self._pool.end, spare)
        self._write(pid=None, identity="", spare="")
        return False

    def _give(self, spare: Spare, command: list[str], attempt: int) -> bool:
        place, settings = self._place, self._settings
        given = Given(
            arguments=tuple(command[command.index("run") :]),
            environment=given_environment(place, attempt),
            directory=place.work,
            log=place.log,
        )
        if settings.uid is not None:
            os.chown(place.log, settings.uid, -1)  # it opens it itself
        full_speed(spare.pid)
        if spare.give(given):
            with contextlib.suppress(ProcessLookupError):
                self._watch(spare.pid, spare.identity)
                self._trouble = None
                self._log.info("spare-took-over", pid=spare.pid, attempt=attempt)
                return True
        return False

    def _watch(self, pid: int, identity_: str) -> None:
        self._process = DriverProcess(pid, identity_, self._wake.set)
        self._silence = Silence(self._settings.silent_s)
        self._stopping = False
        self._write(pid=pid, identity=identity_)

    async def _while_wanted(self, work: Coroutine[Any, Any, None]) -> bool:
        """Prepare a start for as long as the run is to run; whether it got there."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._wake.set())
        try:
            while not task.done() and self._goal == "RUN" and not self._leaving:
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
        return self._goal == "RUN" and not self._leaving

    async def _adopt(self) -> bool:
        """Find the driver that an earlier agent started; whether it is there."""
        record = self._record
        pid, known = record.pid, record.identity
        if pid is None:
            # It was started, and then the agent died before it could note the id.
            pid = await asyncio.to_thread(find, self._place.run, record.attempt)
            known = (identity(pid) or "") if pid is not None else ""
        if pid is None or not known or identity(pid) != known:
            return False
        try:
            self._watch(pid, known)
        except ProcessLookupError:
            return False
        self._log.info("driver-adopted", pid=pid)
        self._changed()
        return True

    async def _end_frozen(self) -> None:
        """It gives no sign of life: whoever is ready takes over, and it goes."""
        if self._frozen is None:
            silent_s = _HEARD_S if self._deaf() else self._settings.silent_s
            frozen = DriverHung(f"The driver gave no sign of life for {silent_s:g} s.")
            self._frozen = failure_of(frozen)
            self._verdict = Verdict(None, self._frozen, again=True)
            self._log.warning("driver-frozen", pid=self._record.pid, why=frozen.what)
            self._changed()
        await self._end_rest()

    async def _promote(self) -> None:
        """Have the standby take over; one that has not begun to listen yet is told when it has."""
        assert self._process is not None
        heard = self._told.standby in (StandbyState.PROMOTING, StandbyState.PROMOTED)
        accept = self._order is not None and self._order.accept_code
        if heard or promote(self._place.promotion, accept_new_code=accept):
            full_speed(self._process.pid)
            self._log.info("standby-promoted", pid=self._process.pid)
            in_row = self._falls_before(self._order) if self._order is not None else 0
            self._write(standby=False, in_row=in_row, drives=datetime.now(UTC))
        else:
            self._told.read()
            await self._wait(_LISTENS_S)

    def _must_help_itself(self) -> bool:
        """Whether nobody else can see that the job's driver makes no progress: the log decides who owns the job."""
        order = self._order
        if order is None or not order.spec.spec.standby.alone_after_s or not self._alone():
            return False
        self._told.read()
        return self._told.standby in _WAITING and time.time() - self._told.stalled_at < _STALLED_S

    async def _stop(self) -> None:
        """Stop as the order says; returns once it has ended."""
        process = self._process
        assert process is not None
        self._stopping = True
        self._changed()
        asked = time.monotonic()
        while not process.exited:
            order = self._order
            force = self._goal == "GONE" or (
                order is not None and order.goal == "STOP" and order.stop_mode is StopMode.FORCE
            )
            patience = self._settings.stop_grace_s if self._leaving else order.stop_timeout_s if order else 0.0
            left = asked + patience - time.monotonic()
            if force or left <= 0:
                await self._end_rest()
                await self._wait(_AGAIN_S)
            else:
                process.terminate()
                await self._finished(left)
            self._wake.clear()
        self._wake.set()

    async def _finished(self, seconds: float) -> None:
        """Until something changes. That the last epoch is out is told at once: a standby may wait for that alone."""
        until = time.monotonic() + seconds
        while self._told.state != DriverState.STOPPED and time.monotonic() < until:
            if await happens(self._wake, _LISTENS_S):
                return
            self._told.read()
            if self._told.state == DriverState.STOPPED:
                self._changed()
        await self._wait(max(0.0, until - time.monotonic()))

    async def _ended(self, exit_code: int | None) -> None:
        """An attempt is over: end what it left behind, and decide what follows."""
        self._told.read()
        self._verdict = self._judged(exit_code)
        # A standby elsewhere is not to wait until the last of its processes is gone.
        self._changed()
        await self._end_rest()
        self._told.read()
        self._decide(self._judged(exit_code).at(self._verdict.failure))

    def _judged(self, exit_code: int | None) -> Verdict:
        if self._frozen is not None:
            return Verdict(exit_code, self._frozen, again=True)
        verdict = judge(exit_code, self._told)
        if self._idle_spare:
            return Verdict(exit_code, verdict.failure, again=True)
        return verdict

    def _decide(self, verdict: Verdict) -> None:
        now = datetime.now(UTC)
        record, order = self._record, self._order
        policy = order.restart if order is not None else None
        failure, final, in_row = verdict.failure, not verdict.again, 0
        if self._stopping or self._goal in ("STOP", "GONE"):
            # What was killed because it had to be is no failure, and neither is what stopped.
            failure = failure if (verdict.exit_code or 0) > 0 else None
            final = not self._leaving
        elif verdict.again and policy is not None:
            in_row = self._falls(policy)
            if in_row > policy.attempts:
                final = True
                failure = failure_of(_exhausted(in_row, failure))
            pause_ms = min(policy.backoff_ms * 2 ** min(max(0, in_row - 1), 30), policy.max_backoff_ms)
            self._not_before = time.monotonic() + max(pause_ms / 1000, policy.yield_s)
        self._process = self._verdict = self._frozen = None
        self._stopping = False
        self._write(ended=now, exit_code=verdict.exit_code, failure=failure, final=final, in_row=in_row)
        self._log.info("driver-ended", pid=record.pid, exit_code=verdict.exit_code, final=final)

    def _falls(self, policy: RestartOrder) -> int:
        """Attempts that ended too early one after another, with this one; without it if it never came to the job."""
        if self._idle_spare:
            return self._record.in_row
        return 1 + (0 if self._healthy(policy) else self._record.in_row)

    def _healthy(self, policy: RestartOrder) -> bool:
        """Whether the attempt has done what makes up for those before."""
        since = self._record.drives or self._record.started
        long = since is not None and (datetime.now(UTC) - since).total_seconds() >= policy.healthy_s
        return self._told.progressed or long

    def _deaf(self) -> bool:
        """Whether a spare that was given this run does nothing about it."""
        began = self._record.started
        late = began is not None and (datetime.now(UTC) - began).total_seconds() > _HEARD_S
        return self._idle_spare and late

    @property
    def _idle_spare(self) -> bool:
        """Whether it is a spare that has not begun with the job: what becomes of it is not the job's doing."""
        return bool(self._record.spare) and self._told.alive_at() is None

    def _falls_before(self, order: RunOrder) -> int:
        """The same, before the attempt that begins, or takes over now: a run that drives goes on with the job's."""
        if order.standby or self._record.drives is not None:
            return self._record.in_row
        return order.restart.failed_before

    async def _end_rest(self) -> None:
        record = self._record
        killed = await asyncio.to_thread(end_all, self._place.run, record.pid, record.identity)
        if record.spare:
            killed += await asyncio.to_thread(self._pool.end_rest, record.spare)
        await asyncio.to_thread(self._place.clear)
        self._memory.remove(self._place.run)
        if killed:
            self._log.info("processes-killed", count=killed)

    def _hold_up(self, error: OSError | ClonosError) -> None:
        failure = failure_of(error if isinstance(error, ClonosError) else ClonosError(f"This host: {error}."))
        if self._trouble is None or (failure.error, failure.what) != (self._trouble.error, self._trouble.what):
            self._log.warning("run-held-up", why=failure.what)
            self._trouble = failure
            self._changed()

    def _write(self, **fields: Any) -> None:
        record = self._record.model_copy(update=fields)
        self._place.folder.mkdir(parents=True, exist_ok=True)
        self._place.write_record(record)
        self._record = record
        self._changed()


def _exhausted(times: int, last: Failure | None) -> RestartsExhausted:
    what = last.what if last is not None else "it ended although it was to run"
    return RestartsExhausted(f"The driver ended {times} times in a row; last: {what}")


def _plain(order: RunOrder, settings: AgentSettings) -> bool:
    """Whether nothing but the job itself is asked of its driver."""
    return not order.standby and order.restore_location is None and "run" in settings.command


def _restored_first(order: RunOrder, place: RunPlace, command: list[str]) -> list[str]:
    """`command`, after the job's checkpoint was put back as the order says (`clonos.agent.restoring`)."""
    location = order.restore_location
    if location is None:
        return command
    epoch = order.start_from.epoch if order.start_from is not None else None
    wish = order.wish or order.run
    first = [sys.executable, "-m", "clonos.agent.restoring"]
    again = order.start_from is not None and order.start_from.publish_again
    first += [str(place.spec), str(place.events), location, "-" if epoch is None else str(epoch), wish]
    first.append("publish-again" if again else "-")
    return [*first, *command, "--new-lineage", "--wish", wish]
