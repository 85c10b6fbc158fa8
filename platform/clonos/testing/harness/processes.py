"""Processes that a test kills, pauses and waits for: a session leader with all processes that it started."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self

import psutil

from clonos.agent.process import RUN
from clonos.errors import ClonosError
from clonos.testing.harness.waiting import eventually

_EXIT_TIMEOUT_S = 15.0
_PAUSE_TIMEOUT_S = 15.0
_POLL_S = 0.005
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class Killed(NamedTuple):
    """How many processes a kill ended, and when."""

    processes: int  # number of killed processes; 0 if none ran
    at: float  # time of the kill, in seconds of the monotonic clock

    @classmethod
    def nothing(cls) -> Self:
        """Return the result of a kill when no process ran."""
        return cls(0, time.monotonic())


class ProcessGroup:
    """A process that leads a session, with all processes that it started.

    Members are all live processes of the session, and the leader's descendants in sessions of their own. The session
    counts and not the process group, because PySpark's worker daemon creates a process group of its own.

    Args:
        pid: The leader's process id, which is also the session's.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        # Holds the start time, so that a later process with the same id is not taken for the leader.
        self._leader: psutil.Process | None = None
        with suppress(psutil.NoSuchProcess):
            self._leader = psutil.Process(pid)

    @property
    def running(self) -> bool:
        """Whether the leader runs (or is paused). A zombie has exited."""
        return self._leader is not None and is_alive(self._leader)

    def members(self) -> list[psutil.Process]:
        """All live processes of the group, the leader included."""
        # Linux gives an id to another process only once no process of the session is left.
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(self.pid) != self._leader:
                return []
        members: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            with suppress(ProcessLookupError, PermissionError):
                if os.getsid(process.pid) == self.pid and is_alive(process):
                    members[process.pid] = process
        if self._leader is not None and is_alive(self._leader):
            with suppress(psutil.NoSuchProcess):
                descendants = self._leader.children(recursive=True)
                members |= {process.pid: process for process in (self._leader, *descendants) if is_alive(process)}
        return list(members.values())

    def signal(self, number: int) -> None:
        """Send a signal to every member."""
        for process in self.members():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def pause(self) -> None:
        """Pause every member with SIGSTOP, and wait until none runs."""
        pause_all(self.members())

    def resume(self) -> None:
        """Continue every member with SIGCONT."""
        self.signal(signal.SIGCONT)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the group for the body of the ``with`` statement."""
        members = self.members()
        self.pause()
        try:
            yield
        finally:
            for process in members:
                with suppress(psutil.NoSuchProcess):
                    process.resume()

    def kill(self) -> Killed:
        """Kill all members with SIGKILL, and wait; returns how many there were, and the time of the kill."""
        return kill_together(self)

    def await_exit(self, timeout_s: float = _EXIT_TIMEOUT_S) -> None:
        """Wait until all members have exited."""
        eventually(
            lambda: not self.members(),
            f"process group {self.pid} exits",
            timeout_s=timeout_s,
            poll_s=_POLL_S,
            details=lambda: "\n".join(map(describe, self.members())),
        )


class ChildProcess(ProcessGroup):
    """A command that is started as the leader of a new session.

    Args:
        command: The command and its arguments.
        environment: Added to the environment of this process.
        log: File that stdout and stderr are appended to.
        own_settings: Leave out the ``CLONOS_…`` variables of this process.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, *, own_settings: bool = False
    ) -> None:
        self.log = log
        inherited = clean_environment() if own_settings else dict(os.environ)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                list(command),
                env={**inherited, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        super().__init__(self._process.pid)

    @property
    def running(self) -> bool:
        """Whether the command still runs."""
        return self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while the command runs."""
        return self._process.poll()

    def wait(self, timeout_s: float = 120.0) -> int:
        """Wait for the command's exit, and return its exit code, negative for a signal.

        Raises:
            TimeoutError: The command still runs; the error holds its processes and the end of its output.
        """
        try:
            eventually(lambda: self.exit_code is not None, "exit", timeout_s=timeout_s)
            return self._process.wait()
        except TimeoutError:
            processes = "\n".join(map(describe, self.members()))
            raise TimeoutError(f"no exit within {timeout_s:g} s:\n{processes}\n{self.tail()}") from None

    def check_running(self) -> None:
        """Raise `ClonosError` if the command has exited."""
        if (code := self.exit_code) is not None:
            raise ClonosError(
                f"The job ended by itself with exit code {code}:\n{self.tail(15)}",
                hint=f"see {self.log} for all of its output.",
            )

    def tail(self, lines: int = 25) -> str:
        """Return the last lines of the command's output."""
        with self.log.open(encoding="utf-8", errors="replace") as log:
            return "".join(deque(log, maxlen=lines)).rstrip()

    def kill(self) -> Killed:
        """Kill all members with SIGKILL, wait until they have exited, and collect the exit code."""
        killed = super().kill()
        self._process.wait()
        return killed

    def stop(self, timeout_s: float = 20.0) -> int:
        """Send SIGTERM to the leader's process group, as a service manager does, and wait up to `timeout_s` seconds.

        Then kill the remaining members. Returns the command's exit code, negative for a signal.
        """
        if self.running:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        self.kill()
        return self._process.wait()


def kill_together(*groups: ProcessGroup, also: Iterable[psutil.Process] = ()) -> Killed:
    """Kill several groups, and processes outside of them, at the same time with SIGKILL; wait until all have exited."""
    # Listed before the leader exits: a descendant in a session of its own is an orphan afterwards.
    by_group = {group.pid: group.members() for group in groups}
    members = [*also, *itertools.chain.from_iterable(by_group.values())]
    killed = 0
    at = time.monotonic()
    for pid in (pid for pid, processes in by_group.items() if processes):
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    while members:
        for process in members:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        await_exit(members)
        killed += len(members)
        # A worker that was forked between the scan and the kill is in the next scan.
        members = [process for group in groups for process in group.members()]
    return Killed(killed, at)


def pause_all(processes: Sequence[psutil.Process]) -> None:
    """Pause processes with SIGSTOP, and wait until none runs: the signal arrives some time after it was sent."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    running = [process for process in processes if _runs(process)]
    if running:
        eventually(
            lambda: not any(map(_runs, running)),
            "processes are paused",
            timeout_s=_PAUSE_TIMEOUT_S,
            poll_s=0.001,
            details=lambda: "\n".join(describe(process) for process in running if _runs(process)),
        )


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return is_alive(process) and process.status() != psutil.STATUS_STOPPED
    return False


def await_exit(processes: Sequence[psutil.Process], timeout_s: float = _EXIT_TIMEOUT_S) -> None:
    """Wait until all processes have exited."""
    eventually(
        lambda: not any(map(is_alive, processes)),
        "processes exit",
        timeout_s=timeout_s,
        poll_s=_POLL_S,
        details=lambda: "\n".join(describe(process) for process in processes if is_alive(process)),
    )


def is_alive(process: psutil.Process) -> bool:
    """Whether a process has not exited.

    A zombie has exited; in a container without an init process nothing ever collects it.
    """
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def describe(process: psutil.Process) -> str:
    """Process id, status and command line of a process, for error messages."""
    with suppress(psutil.NoSuchProcess):
        return f"{process.pid} {process.status()} {' '.join(process.cmdline())[:120]}"
    return f"{process.pid} (exited)"


def processes_of_home(home: Path) -> Iterator[tuple[psutil.Process, str]]:
    """Yield each live process with this ``CLONOS_HOME``, and the id of its run (empty: it belongs to none).

    Processes inherit the variable, so everything that they started is included.
    """
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            environment = process.environ()
            if environment.get("CLONOS_HOME") == str(home) and is_alive(process):
                yield process, environment.get(RUN, "")


def executors_of(application_id: str) -> list[psutil.Process]:
    """Return the live executors on this machine of a Spark application on a standalone cluster."""
    executors = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = process.cmdline()
            if _EXECUTOR in command and application_id in command and is_alive(process):
                executors.append(process)
    return executors


def clean_environment() -> dict[str, str]:
    """Return the environment of this process without ``CLONOS_…`` variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CLONOS_")}
