"""Keeps one run as it is ordered: level-triggered, so that an order that was missed does not matter."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Final, Literal

import structlog
import yaml

from clonos.agent.artifacts import Artifacts
from clonos.agent.environment import driver_environment
from clonos.agent.measuring import sizes
from clonos.agent.memory import MemoryLimits, join
from clonos.agent.place import RunPlace
from clonos.agent.process import DriverProcess, end_all, find, identity, launch
from clonos.agent.settings import AgentSettings
from clonos.agent.told import Told
from clonos.agent.verdict import Verdict, judge
from clonos.agent.waiting import happens
from clonos.errors import ClonosError, EnvironmentFault, RestartsExhausted
from clonos.resources.failures import failure_of
from clonos.resources.hosts import RunOrder, RunReport
from clonos.resources.jobs import Failure, StopMode
from clonos.resources.spec_secrets import from_folder, resolved
from clonos.runner.states import DriverState

Goal = Literal["WAIT", "RUN", "STOP", "GONE"]

_log = structlog.get_logger("clonos.agent")
_AGAIN_S: Final = 1.0
_ALIVE: Final = frozenset({DriverState.RUNNING, DriverState.RESTARTING, DriverState.STOPPING})


class Keeper:
    """Keeps one run.

    Args:
        settings: The agent's.
        place: The run's folder.
        artifacts: Where its code comes from.
        memory: What limits its memory.
        changed: Called when there is something to report at once.
    """

    def __init__(
        self,
        settings: AgentSettings,
        place: RunPlace,
        artifacts: Artifacts,
        memory: MemoryLimits,
        changed: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._place = place
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
        if self._process is not None:
            alive = self._told.state in _ALIVE
            state = "STOPPING" if self._stopping else "RUNNING" if alive else "STARTING"
        else:
            state = "EXITED" if record.ended is not None else "PENDING"
        return RunReport(
            run=self._place.run,
            state=state,
            driver_state=self._told.state,
            attempts=(self._order.attempt_base if self._order else 0) + record.attempt,
            pid=self._process.pid if self._process else None,
            generation=self._generation,
            exit_code=record.exit_code,
            failure=self._trouble or record.failure,
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
            await self._wait()
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
        # Before the driver is there, so that an agent that comes after a crash looks for it.
        self._write(
            attempt=attempt,
            started=datetime.now(UTC),
            pid=None,
            identity="",
            events_from=begins,
            ended=None,
        )
        self._told = Told(place.events, begins)
        paths = {"{spec}": str(place.spec), "{events}": str(place.events)}
        command = [paths.get(one, one) for one in settings.command]
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
        # A driver that has ended already is still there for us, as its parent, until we ask how.
        self._watch(pid, identity(pid) or "")
        if settings.memory_limit_mb is not None and (group := self._memory.make(place.run, settings.memory_limit_mb)):
            join(group, pid)
        self._trouble = None
        self._log.info("driver-started", job=order.name, pid=pid, attempt=order.attempt_base + attempt)

    def _watch(self, pid: int, identity_: str) -> None:
        self._process = DriverProcess(pid, identity_, self._wake.set)
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
                await self._wait(left)
            self._wake.clear()
        self._wake.set()

    async def _ended(self, exit_code: int | None) -> None:
        """An attempt is over: end what it left behind, and decide what follows."""
        await self._end_rest()
        self._told.read()
        self._decide(judge(exit_code, self._told))

    def _decide(self, verdict: Verdict) -> None:
        now = datetime.now(UTC)
        record, order = self._record, self._order
        policy = order.restart if order is not None else None
        ran = (now - record.started).total_seconds() if record.started else 0.0
        failure, final, in_row = verdict.failure, not verdict.again, 0
        if self._stopping or self._goal in ("STOP", "GONE"):
            # What was killed because it had to be is no failure, and neither is what stopped.
            failure = failure if (verdict.exit_code or 0) > 0 else None
            final = not self._leaving
        elif verdict.again and policy is not None:
            in_row = 1 + (0 if self._told.progressed or ran >= policy.healthy_s else record.in_row)
            if in_row > policy.attempts:
                final = True
                failure = failure_of(_exhausted(in_row, failure))
            pause_ms = min(policy.backoff_ms * 2 ** min(in_row - 1, 30), policy.max_backoff_ms)
            self._not_before = time.monotonic() + pause_ms / 1000
        self._process = None
        self._stopping = False
        self._write(ended=now, exit_code=verdict.exit_code, failure=failure, final=final, in_row=in_row)
        self._log.info("driver-ended", pid=record.pid, exit_code=verdict.exit_code, final=final)

    async def _end_rest(self) -> None:
        record = self._record
        killed = await asyncio.to_thread(end_all, self._place.run, record.pid, record.identity)
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
