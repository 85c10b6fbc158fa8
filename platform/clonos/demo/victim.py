"""The process that the demo kills: a job in a session of its own, with everything that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import psutil

from clonos.errors import ClonosError

_GONE_WITHIN_S = 15.0


class Killed(NamedTuple):
    """What a kill did.

    Attributes:
        processes: How many died; 0 if there was none.
        at: When, in seconds of the monotonic clock.
    """

    processes: int
    at: float


class Killable(Protocol):
    """A job that the demo starts, kills and stops."""

    def start(self) -> None:
        """Start it; after a kill, see that it is started again."""

    def must_run(self) -> None:
        """Raise `ClonosError` if it ended by itself."""

    def last_words(self) -> str:
        """The end of its output."""

    def guard(self, wanted: bool) -> bool:
        """Let it have a standby, or none; whether that is so by now: one is READY, or none waits."""

    def kill(self) -> Killed:
        """SIGKILL it with all that it started."""

    def taken_over(self) -> bool:
        """Whether what goes on after the last kill is what waited as a standby then."""

    def stop(self) -> int:
        """Stop it gracefully; its exit code."""


class Victim:
    """Starts a command in a new session and ends it, gently or not.

    Args:
        command: What to run.
        environment: Added to the environment of this process.
        log: File that takes stdout and stderr of every start.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._command = list(command)
        self._environment = {**os.environ, **environment}
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        """Start the command."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.starts += 1

    @property
    def running(self) -> bool:
        """Whether the command runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def session(self) -> int:
        """The session of the command and of everything it starts; 0 before the first start."""
        return self._process.pid if self._process else 0

    def must_run(self) -> None:
        """Raise unless the command runs.

        Raises:
            ClonosError: It ended by itself.
        """
        if self._process is None or self.running:
            return
        raise ClonosError(
            f"The job ended by itself with exit code {self._process.returncode}:\n{self.last_words()}",
            hint=f"see {self._log} for all of its output.",
        )

    def last_words(self, lines: int = 15) -> str:
        """The end of the command's output."""
        with self._log.open(encoding="utf-8", errors="replace") as log:
            return "".join(deque(log, maxlen=lines)).rstrip()

    def guard(self, wanted: bool) -> bool:
        """A plain process has no standby."""
        return not wanted

    def taken_over(self) -> bool:
        """Nothing could."""
        return False

    def kill(self) -> Killed:
        """SIGKILL the process group, then whatever else is in the session or descends from it.

        Raises:
            ClonosError: A process outlived SIGKILL.
        """
        if self._process is None:
            return Killed(0, time.monotonic())
        session = self._process.pid
        died = 0
        # Seen before the leader dies: a descendant that made itself a session is an orphan afterwards.
        members = members_of(session, descendants=self.running)
        at = time.monotonic()
        if self.running:
            os.killpg(session, signal.SIGKILL)
            # The leader is our child and left to Popen, which would otherwise not learn its exit status.
            self._process.wait()
            died += 1
        while members:
            for process in members:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            await_death(members)
            died += len(members)
            # A worker forked between the look and the kill is found by the next look.
            members = members_of(session, descendants=False)
        return Killed(died, at)

    def stop(self, timeout_s: float = 20.0) -> int:
        """SIGTERM the command and wait; kill what is left.

        Returns:
            The exit code.
        """
        if self._process is None:
            return 0
        if self.running:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        self.kill()
        return self._process.wait()


def members_of(session: int, *, descendants: bool) -> list[psutil.Process]:
    """Live processes of a session without its leader, and on demand the leader's descendants in other sessions.

    The session is what counts: PySpark's worker daemon makes itself a process group of its own.
    """
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == session and _alive(process):
                found[process.pid] = process
    if descendants:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.update({child.pid: child for child in psutil.Process(session).children(recursive=True)})
    found.pop(session, None)
    return list(found.values())


def _alive(process: psutil.Process) -> bool:
    # A zombie has died; in a container without an init process nobody ever collects it.
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def await_death(processes: Sequence[psutil.Process]) -> None:
    """Wait until all are dead.

    Raises:
        ClonosError: One outlived SIGKILL.
    """
    deadline = time.monotonic() + _GONE_WITHIN_S
    while alive := [process.pid for process in processes if _alive(process)]:
        if time.monotonic() > deadline:
            raise ClonosError(f"Processes {alive} outlived SIGKILL.")
        time.sleep(0.005)
