"""A driver as a process: started in a session of its own, found again by another agent, ended with all it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

# In the environment of a driver and of all that it starts.
RUN: Final = "CLONOS_RUN"
ATTEMPT: Final = "CLONOS_ATTEMPT"
_GONE: Final = frozenset({psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD})
_END_S: Final = 5.0


def identity(pid: int) -> str | None:
    """What no later process with this id will have; None if there is no living one.

    Clock ticks since this boot, because psutil's time of start moves when the clock is set.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else f"{boot}/{fields[19]}"


class DriverProcess:
    """A driver that runs, whether this agent started it or another one.

    Args:
        pid: Its process id, also the id of its session.
        identity: As `identity` gave it.
        on_exit: Called in the loop as soon as it has ended.

    Raises:
        ProcessLookupError: It has ended already.
    """

    def __init__(self, pid: int, identity_: str, on_exit: Callable[[], None]) -> None:
        self.pid = pid
        self.identity = identity_
        self.exited = False
        self.exit_code: int | None = None
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        # First the descriptor, then the look whether it is of the right process.
        self._fd = os.pidfd_open(pid)
        if identity(pid) not in (identity_, None):
            os.close(self._fd)
            raise ProcessLookupError(pid)
        self._loop.add_reader(self._fd, self._ended)

    def _ended(self) -> None:
        self.leave()
        self.exited = True
        # Of a process that an earlier agent started the code is unknown.
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(self.pid, 0)
            self.exit_code = os.waitstatus_to_exitcode(status)
        self._on_exit()

    def leave(self) -> None:
        """Look after it no more; it goes on."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def terminate(self) -> None:
        """Ask it for a graceful end."""
        if self._fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGTERM)
                signal.pidfd_send_signal(self._fd, signal.SIGCONT)  # a stopped one would not hear it


def launch(
    command: Sequence[str],
    *,
    directory: Path,
    environment: Mapping[str, str],
    log: Path,
    uid: int | None = None,
    gid: int | None = None,
) -> int:
    """Start a driver in a session of its own; its output goes to `log`, so that it outlives the agent.

    Raises:
        OSError: It cannot be started.
    """
    with log.open("ab") as out:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=dict(environment),
            start_new_session=True,
            user=uid,
            group=gid if gid is not None else uid,
            extra_groups=[] if uid is not None else None,
        )
    # From here on it is known by its id alone, as one that was adopted.
    child.returncode = 0
    return child.pid


def find(run: str, attempt: int) -> int | None:
    """The driver of an attempt, by what it has in its environment: for an agent that died before it noted the id."""
    for pid in psutil.pids():
        theirs = _environment(pid)
        if theirs.get(RUN) == run and theirs.get(ATTEMPT) == str(attempt) and _session(pid) == pid:
            return pid
    return None


def end_all(run: str, pid: int | None, identity_: str) -> int:
    """Kill whatever is left of a run's driver: its session, and what left the session but not the environment.

    Args:
        run: The run.
        pid: The driver.
        identity_: Its identity.

    Returns:
        How many processes were killed.

    Raises:
        TimeoutError: Some would not go.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + _END_S
    # Until a whole round finds nobody, because a process may fork while it is looked for.
    while left := [one for one in psutil.pids() if _belongs(one, run, pid, identity_)]:
        for one in left:
            killed.add(one)
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {left} of run {run} do not end")
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
    if leader is not None and _session(pid) == leader and identity(leader) in (identity_, None):
        # The number may have been given out again since: whoever is older than the driver is not of its session.
        return _born(identity(pid) or "") >= _born(identity_) and _boot(identity(pid) or "") == _boot(identity_)
    return _environment(pid).get(RUN) == run


def _born(identity_: str) -> int:
    return int(identity_.rpartition("/")[2] or 0)


def _boot(identity_: str) -> str:
    return identity_.partition("/")[0]


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return -1


def _environment(pid: int) -> dict[str, str]:
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (one.partition(b"=") for one in raw.split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
