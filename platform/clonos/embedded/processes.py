"""Detached processes that another process can find, judge and end again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

State = Literal["running", "paused", "stopped"]

# Children of this very process have to be waited for, or they stay behind as zombies.
_children: list[subprocess.Popen[bytes]] = []
# psutil rounds the start time to the kernel's clock ticks.
_TICK_S = 0.05
_LOOK_S = 0.1
_LAST_MOMENT_S = 0.5


@dataclass(frozen=True)
class Recorded:
    """A process as it is written down.

    Attributes:
        pid: Its process id.
        created: When it started, so that another process with a reused id is never taken for it.
    """

    pid: int
    created: float

    def find(self) -> psutil.Process | None:
        """The process, if it is still there."""
        _children[:] = [child for child in _children if child.poll() is None]
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.created) < _TICK_S
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None

    def state(self) -> State:
        """What the process is doing."""
        process = self.find()
        if process is None:
            return "stopped"
        try:
            return "paused" if process.status() == psutil.STATUS_STOPPED else "running"
        except psutil.NoSuchProcess:
            return "stopped"

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process is gone."""
        process = self.find()
        if process is not None:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def spawn(
    command: Sequence[str], *, output: Path, directory: Path, environment: Mapping[str, str] | None = None
) -> Recorded:
    """Start `command` in a session of its own, so that it outlives this process and its terminal."""
    given = os.environ if environment is None else environment
    with output.open("ab") as sink:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=directory,
            start_new_session=True,
            # Flags from the environment are meant for the user's own Java programs.
            env={name: value for name, value in given.items() if name not in {"JAVA_TOOL_OPTIONS", "CLASSPATH"}},
        )
    _children.append(child)
    return Recorded(child.pid, psutil.Process(child.pid).create_time())


def end(processes: Sequence[Recorded], *, grace_s: float, settled: Callable[[], bool] = lambda: False) -> None:
    """End all `processes` together: politely first, then without asking.

    Args:
        processes: Those that have ended already are passed over.
        grace_s: How long they may take.
        settled: True once there is nothing left to be polite for.
    """
    left = [process for recorded in processes if (process := recorded.find()) is not None]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
            process.resume()  # a paused one would not hear it
    deadline = time.monotonic() + grace_s
    while left and time.monotonic() < deadline:
        enough = settled()  # asked first, so that who settles last still has a moment to go
        _, left = psutil.wait_procs(left, timeout=_LAST_MOMENT_S if enough else _LOOK_S)
        if enough:
            break
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=grace_s)
