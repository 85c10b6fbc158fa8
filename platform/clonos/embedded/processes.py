"""Starts processes that outlive this process, and finds, inspects and stops them later, also from another process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from clonos.deadline import Deadline

State = Literal["running", "paused", "stopped"]

# Children of this process must be waited for, or they remain as zombies.
_children: list[subprocess.Popen[bytes]] = []
# psutil rounds the start time to the kernel's clock ticks.
_TICK_S = 0.05
_POLL_S = 0.1
_FINAL_WAIT_S = 0.5


@dataclass(frozen=True)
class ProcessRecord:
    """Identifies a process by its id and start time."""

    pid: int  # process id
    created: float  # start time in seconds since 1970; it distinguishes the process from a later one with the same id

    def find(self) -> psutil.Process | None:
        """Return the process, if it still runs; else None."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.created) < _TICK_S
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None
        finally:
            _collect_exited()

    def state(self) -> State:
        """Whether the process runs, is paused or has exited."""
        process = self.find()
        if process is None:
            return "stopped"
        try:
            return "paused" if process.status() == psutil.STATUS_STOPPED else "running"
        except psutil.NoSuchProcess:
            return "stopped"

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has exited."""
        process = self.find()
        if process is not None:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def popen_detached(
    command: Sequence[str],
    *,
    output: Path,
    directory: Path,
    environment: Mapping[str, str],
    uid: int | None = None,
    gid: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start `command` in its own session, so that it outlives this process and its terminal.

    Its output is appended to a file, and `environment` has all variables. `uid` None is this process's, `gid` None is
    `uid`. `OSError` if the process cannot be started.
    """
    with output.open("ab") as sink:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=dict(environment),
            start_new_session=True,
            user=uid,
            group=gid if gid is not None else uid,
            extra_groups=[] if uid is not None else None,
        )


def spawn(
    command: Sequence[str], *, output: Path, directory: Path, environment: Mapping[str, str] | None = None
) -> ProcessRecord:
    """Start `command` in its own session, so that it outlives this process.

    It gets `environment` (default: this process's) without ``JAVA_TOOL_OPTIONS`` and ``CLASSPATH``, which are for the
    user's own programs.
    """
    environment = os.environ if environment is None else environment
    environment = {name: value for name, value in environment.items() if name not in {"JAVA_TOOL_OPTIONS", "CLASSPATH"}}
    child = popen_detached(command, output=output, directory=directory, environment=environment)
    _children.append(child)
    return ProcessRecord(child.pid, psutil.Process(child.pid).create_time())


def stop_all(
    processes: Sequence[ProcessRecord], *, grace_s: float, settled: Callable[[], bool] = lambda: False
) -> None:
    """Stop all `processes` that run with SIGTERM, and after `grace_s`, or once `settled` returns True, with SIGKILL."""
    running = [process for record in processes if (process := record.find()) is not None]
    for process in running:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
            process.resume()  # a paused process does not handle SIGTERM
    deadline = Deadline(grace_s)
    while running and not deadline.passed():
        enough = settled()  # before the wait, so that the last process to settle has time to exit
        _, running = psutil.wait_procs(running, timeout=_FINAL_WAIT_S if enough else _POLL_S)
        if enough:
            break
    for process in running:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(running, timeout=grace_s)
    _collect_exited()


def _collect_exited() -> None:
    _children[:] = [child for child in _children if child.poll() is None]
