"""The pool drivers of a host: warm drivers without a job (`clonos.standby.pool_driver`), which the agent keeps for
its runs.

A pool driver exits with its agent, until it becomes the driver of a run: then it is a driver like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from clonos.agent.environment import pool_driver_environment
from clonos.agent.priority import Priority, set_priority
from clonos.agent.process import DriverProcess, identity, kill_all, launch
from clonos.agent.settings import AgentSettings
from clonos.standby.launch_request import LOG, MAILBOX, LaunchRequest
from clonos.standby.mailbox import Sender

_log = structlog.get_logger("clonos.agent")
# Pause before a replacement starts: a pool driver that became a driver needs the CPU for itself, and one that exited
# may have run out of memory.
_RESTART_PAUSE_S: Final = 10.0
_LONGEST_PAUSE_S: Final = 300.0
_CHECK_S: Final = 1.0
# On a machine whose drivers take all CPU time, a warm-up took five minutes.
_WARM_UP_LIMIT_S: Final = 900.0


@dataclass
class PoolDriver:
    """The agent's view of a pool driver process."""

    name: str  # name of the pool driver; its processes have it in their environment, instead of a run's id
    folder: Path  # directory of the pool driver
    pid: int  # process id, also the id of its session
    identity: str  # identity of the process, from `clonos.agent.process.identity`
    process: DriverProcess  # the process, as the agent supervises it
    started: float  # time of the start, in seconds of the monotonic clock
    sender: Sender | None = None  # the open mailbox of the pool driver, once the pool has handed it out
    was_ready: bool = False  # whether the pool driver was ready at least once

    @property
    def ready(self) -> bool:
        """Whether the pool driver is warm and could become the driver of a run now."""
        sender = None if self.process.exited else Sender.open(self.folder / MAILBOX)
        if sender is not None:
            self.was_ready = True
            sender.close()
        return sender is not None

    @property
    def stuck(self) -> bool:
        """Whether the pool driver did not become ready in time, or no longer reads its mailbox."""
        return not self.ready and (self.was_ready or time.monotonic() > self.started + _WARM_UP_LIMIT_S)

    def launch(self, request: LaunchRequest) -> bool:
        """Send the request to become the driver of a run; returns whether the pool driver received it."""
        sender, self.sender = self.sender, None
        return sender is not None and sender.send(request.message())


class WarmPool:
    """Keeps `AgentSettings.pool_size` pool drivers warm, each with a directory in `folder`."""

    def __init__(self, settings: AgentSettings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._drivers: list[PoolDriver] = []
        self._next_start_at = 0.0
        self._failures = 0  # number of consecutive pool drivers that never became ready

    def clear(self, used: set[str]) -> None:
        """Kill the pool drivers of an earlier agent process, except those named in `used`, which became drivers."""
        if self._folder.is_dir():
            for folder in self._folder.iterdir():
                if folder.name not in used:
                    kill_pool_driver(self._folder, folder.name)

    async def maintain(self, used: set[str]) -> None:
        """Start pool drivers, and replacements for those that became drivers or exited, until cancelled.

        Before that, `clear` kills the pool drivers of an earlier agent process, except those named in `used`.
        """
        await asyncio.to_thread(self.clear, used)
        while True:
            failed = [driver for driver in self._drivers if driver.process.exited or driver.stuck]
            # Before the kills: a run may take another pool driver in between.
            self._drivers = [driver for driver in self._drivers if driver not in failed]
            for driver in failed:
                _log.warning("pool-driver-ended", pid=driver.pid, exit_code=driver.process.exit_code)
                self._pause_after_failure(was_ready=driver.was_ready)
                driver.process.detach()
                await asyncio.to_thread(self.kill, driver)
            warming = self.ready < len(self._drivers)  # one at a time
            missing = len(self._drivers) < self._settings.pool_size and not warming
            if missing and time.monotonic() >= self._next_start_at:
                self._start()
            await asyncio.sleep(_CHECK_S)

    async def close(self) -> None:
        """Kill all pool drivers of this agent."""
        drivers, self._drivers = self._drivers, []
        for driver in drivers:
            driver.process.detach()
        await asyncio.gather(*(asyncio.to_thread(self.kill, driver) for driver in drivers))

    @property
    def ready(self) -> int:
        """Number of pool drivers that could become drivers now."""
        return sum(driver.ready for driver in self._drivers)

    def take(self) -> PoolDriver | None:
        """Hand out a ready pool driver; None if there is none."""
        for driver in self._drivers:
            sender = None if driver.process.exited else Sender.open(driver.folder / MAILBOX)
            if sender is not None:
                self._drivers.remove(driver)
                self._next_start_at, self._failures = time.monotonic() + _RESTART_PAUSE_S, 0
                driver.process.detach()
                driver.sender = sender
                return driver
        return None

    def kill(self, driver: PoolDriver) -> None:
        """Kill a pool driver. This blocks, so never call it in the event loop."""
        if driver.sender is not None:
            driver.sender.close()
        kill_pool_driver(self._folder, driver.name, driver.pid, driver.identity)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(driver.pid, os.WNOHANG)

    def kill_remaining(self, name: str) -> int:
        """Kill what remains of a pool driver that became a driver and exited; returns the number of processes."""
        killed = kill_all(name, None, "")
        shutil.rmtree(self._folder / name, ignore_errors=True)
        return killed

    def _pause_after_failure(self, *, was_ready: bool = False) -> None:
        """Let the next pool driver wait: a start takes CPU time from the jobs, also if it fails for want of memory."""
        failures = 0 if was_ready else self._failures
        self._next_start_at = time.monotonic() + pause_s(failures)
        self._failures = 0 if was_ready else failures + 1

    def _start(self) -> None:
        settings, name = self._settings, f"pool-driver-{secrets.token_hex(8)}"
        folder = self._folder / name
        scratch = folder / "tmp"
        values = {"{folder}": str(folder), "{agent}": str(os.getpid())}
        try:
            scratch.mkdir(parents=True)
            self._folder.chmod(0o711)
            (folder / LOG).touch(mode=0o600)
            for path in (folder / LOG, scratch, folder):
                if path.is_dir():
                    path.chmod(0o700)
                if settings.uid is not None:
                    os.chown(path, settings.uid, settings.gid if settings.gid is not None else -1)
            pid = launch(
                [values.get(argument, argument) for argument in settings.pool_driver_command],
                directory=folder,
                environment=pool_driver_environment(settings, name, folder, scratch),
                log=folder / LOG,
                uid=settings.uid,
                gid=settings.gid,
            )
            set_priority(pid, Priority.POOL)
            identity_ = identity(pid) or ""
            process = DriverProcess(pid, identity_, lambda: None)
        except OSError as error:
            _log.error("pool-driver-not-started", why=str(error))
            self._pause_after_failure()
            kill_pool_driver(self._folder, name)
            return
        self._drivers.append(PoolDriver(name, folder, pid, identity_, process, time.monotonic()))
        _log.info("pool-driver-started", pid=pid)


def pause_s(failures: int) -> float:
    """Return the seconds until the next pool driver starts, after a row of `failures` that never became ready.

    Example:
        >>> [pause_s(failures) for failures in (0, 1, 2, 9)]
        [10.0, 20.0, 40.0, 300.0]
    """
    return min(_RESTART_PAUSE_S * 2.0 ** min(failures, 10), _LONGEST_PAUSE_S)


def kill_pool_driver(folder: Path, name: str, pid: int | None = None, identity_: str = "") -> int:
    """Kill all processes of a pool driver and remove its directory `folder/name`; returns the number of processes."""
    killed = 0
    with contextlib.suppress(OSError):  # the next agent retries
        killed = kill_all(name, pid, identity_)
        shutil.rmtree(folder / name, ignore_errors=True)
    return killed
