"""`KillableJob`, the interface of a job that the demo kills and restarts, and its implementation without a control
plane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from clonos.testing.harness import ChildProcess, Killed, ProcessGroup
from clonos_demo.gaps import Target


class KillableJob(Protocol):
    """A job that the demo starts, kills, restarts and stops."""

    def start(self) -> None:
        """Start the job; after a kill, ensure that it is started again."""

    def check_running(self) -> None:
        """Raise `ClonosError` if the job exited although the demo did not kill it."""

    def tail(self) -> str:
        """Return the last lines of the job's output, for error messages."""

    def allow_standby(self, allowed: bool) -> bool:
        """Allow or prevent a standby of the job.

        Returns:
            Whether the job is ready for the kill: a standby is READY and had time to rehearse, or none exists.
        """

    def standby_phase(self) -> str:
        """Return what the job's standby does now, as a clause for the screen."""

    def driver(self) -> ProcessGroup | None:
        """Return the processes of the job's driver; None if none runs."""

    def kill(self, target: Target = "driver") -> Killed:
        """Kill the job's driver, or an executor of its, and all child processes with SIGKILL."""

    def taken_over(self) -> bool:
        """Whether a standby took over after the last kill: it is the current driver."""

    def next_driver_since(self, killed_at: float) -> float | None:
        """Return the moment after which output comes from the driver that follows a kill; None: not known yet.

        Moments are in seconds since 1970. The executors of a killed driver on a Spark cluster may still publish.
        """

    def stop(self) -> int:
        """Stop the job gracefully; returns the exit code of its driver."""


class DirectJob:
    """A job as a child process of the demo, which starts it again after each kill.

    Args:
        command: The command that runs the job.
        environment: Added to the environment of this process.
        log: File for stdout and stderr of every start.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._command = command
        self._environment = environment
        self._log = log
        self._process: ChildProcess | None = None

    def start(self) -> None:
        """Start the job's command as a child process."""
        self._process = ChildProcess(self._command, self._environment, self._log)

    def check_running(self) -> None:
        """Raise if the job's command exited although the demo did not kill it."""
        if self._process is not None:
            self._process.check_running()

    def tail(self) -> str:
        """Return the last lines of the command's output, for error messages."""
        return self._process.tail(15) if self._process is not None else ""

    def allow_standby(self, allowed: bool) -> bool:
        """Whether `allowed` is False: a job without a control plane never has a standby."""
        return not allowed

    def standby_phase(self) -> str:
        """Return the clause for a job that has no standby."""
        return "it has none"

    def taken_over(self) -> bool:
        """Return False: a job without a control plane has no standby."""
        return False

    def driver(self) -> ProcessGroup | None:
        """Return the command with all its child processes; None before the start."""
        return self._process

    def kill(self, target: Target = "driver") -> Killed:
        """Kill the command and all its child processes with SIGKILL."""
        return self._process.kill() if self._process is not None else Killed.nothing()

    def next_driver_since(self, killed_at: float) -> float | None:
        """Return the kill itself: all processes of the job are killed."""
        return killed_at

    def stop(self) -> int:
        """Stop the command with SIGTERM and kill its remaining child processes; returns the command's exit code."""
        return self._process.stop() if self._process is not None else 0
