"""Driver processes: starts each in its own session, finds those of an earlier agent, and kills drivers with all
descendants.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from clonos.deadline import Deadline
from clonos.embedded.processes import popen_detached

# Environment variables of a driver and of all its descendants.
RUN: Final = "CLONOS_RUN"
ATTEMPT: Final = "CLONOS_ATTEMPT"
_KILL_TIMEOUT_S: Final = 5.0


def identity(pid: int) -> str | None:
    """Identity of the process with this id, which no later process with the id has; None if there is no such process.

    It consists of boot id and start time in clock ticks since boot, which a change of the clock does not affect.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else f"{boot}/{fields[19]}"


class DriverProcess:
    """A live driver process, started by this agent or by its predecessor; `pid` is also the id of its session.

    `on_exit` is called in the event loop as soon as the driver has exited.

    Raises:
        ProcessLookupError: The driver has exited already: no process has this pid and `identity`.
    """

    def __init__(self, pid: int, identity_: str, on_exit: Callable[[], None]) -> None:
        self.pid = pid
        self.identity = identity_
        self.exited = False
        self.exit_code: int | None = None
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        # Open the descriptor before the check: afterwards the id cannot change its process.
        self._fd = os.pidfd_open(pid)
        if identity(pid) not in (identity_, None):
            os.close(self._fd)
            raise ProcessLookupError(pid)
        self._loop.add_reader(self._fd, self._handle_exit)

    def _handle_exit(self) -> None:
        self.detach()
        self.exited = True
        # The exit code of a driver that an earlier agent started is unknown.
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(self.pid, 0)
            self.exit_code = os.waitstatus_to_exitcode(status)
        self._on_exit()

    def detach(self) -> None:
        """Stop watching the driver, which keeps running."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def terminate(self) -> None:
        """Request a graceful stop of the driver with SIGTERM."""
        if self._fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGTERM)
                signal.pidfd_send_signal(self._fd, signal.SIGCONT)  # a suspended process handles no SIGTERM


def launch(
    command: Sequence[str],
    *,
    directory: Path,
    environment: Mapping[str, str],
    log: Path,
    uid: int | None = None,
    gid: int | None = None,
) -> int:
    """Start a driver in its own session, and return its process id. Its output goes to `log`: it outlives the agent.

    `environment` has all variables. `uid` None is the agent's, `gid` None is `uid`.
    """
    child = popen_detached(command, output=log, directory=directory, environment=environment, uid=uid, gid=gid)
    # `DriverProcess` waits for the exit, so `Popen` must not.
    child.returncode = 0
    return child.pid


def find_driver(run: str, attempt: int) -> int | None:
    """Process id of the driver of an attempt of `run` (id), found by its environment; None if there is none.

    For an agent whose predecessor was killed before it recorded the process id.
    """
    for pid in psutil.pids():
        environment = _environment_of(pid)
        if environment.get(RUN) == run and environment.get(ATTEMPT) == str(attempt) and _session_of(pid) == pid:
            return pid
    return None


def kill_all(run: str, pid: int | None, identity_: str) -> int:
    """Kill a driver's session, and all processes with the run in their environment; returns how many.

    `TimeoutError` if some do not exit.
    """
    killed: set[int] = set()
    deadline = Deadline(_KILL_TIMEOUT_S)
    # Repeat until no process remains, because processes may fork during a round.
    while left := [member for member in psutil.pids() if _belongs(member, run, pid, identity_)]:
        for member in left:
            killed.add(member)
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        if deadline.passed():
            raise TimeoutError(f"processes {left} of run {run} do not exit")
        _await_exit(left)
    return len(killed)


def _await_exit(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            fd = os.pidfd_open(pid)
            try:
                waiting = select.poll()
                waiting.register(fd, select.POLLIN)
                waiting.poll(200)
            finally:
                os.close(fd)


def _belongs(pid: int, run: str, leader: int | None, identity_: str) -> bool:
    if pid == os.getpid() or identity(pid) is None:
        return False
    if leader is not None and _session_of(pid) == leader and identity(leader) in (identity_, None):
        # The kernel may have reused the id: a process older than the driver is not a member of its session.
        member = identity(pid) or ""
        return _boot_id(member) == _boot_id(identity_) and _start_ticks(member) >= _start_ticks(identity_)
    return _environment_of(pid).get(RUN) == run


def _start_ticks(identity_: str) -> int:
    return int(identity_.rpartition("/")[2] or 0)


def _boot_id(identity_: str) -> str:
    return identity_.partition("/")[0]


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return -1


def _environment_of(pid: int) -> dict[str, str]:
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
