"""CPU priorities of the processes of a host: what readers wait for comes first, and what only prepares comes last.

Linux may schedule each session as a group (``sched_autogroup_enabled``). Then the nice values of processes count only
within their session, and the group has a nice value of its own; sched(7) describes both.
"""

from __future__ import annotations

import contextlib
import os
import re
from enum import IntEnum
from pathlib import Path
from typing import Final

import psutil

_CAP_SYS_NICE: Final = 23  # capabilities(7)


class Priority(IntEnum):
    """Nice values."""

    SERVICE = -10  # agent and control plane: each step of a takeover waits for them, and they take little time
    TAKEOVER = -5  # a standby from its promotion on, for some seconds: the readers of its job wait
    DRIVER = 0  # also a standby that is not READY yet: until then a failure leads to a cold restart
    POOL = 5  # a pool driver, which warms up for the next failures
    WAITING = 10  # a READY standby, which repeats its rehearsals


def may_raise() -> bool:
    """Whether this process may raise priorities."""
    capabilities = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return capabilities is not None and bool(int(capabilities[1], 16) >> _CAP_SYS_NICE & 1)


def set_priority(session: int, priority: Priority) -> bool:
    """Set the priority of a session's threads and later processes; returns whether nothing is left to do later.

    Only a process with the capability ``CAP_SYS_NICE``, such as root, can raise a priority again. Without it nothing is
    changed.
    """
    if not may_raise():
        return True
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == session:
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    with contextlib.suppress(OSError):
                        os.setpriority(os.PRIO_PROCESS, int(thread.name), priority)
    return set_group_priority(session, priority)


class SessionPriority:
    """The priority of a driver's session. `set` makes each change once, and again if Linux refused it."""

    def __init__(self) -> None:
        self._last: tuple[int, Priority] | None = None

    def set(self, session: int, priority: Priority) -> None:
        """Set the priority of the session, unless it is set. Call it again later: Linux may refuse it at first."""
        if self._last != (session, priority) and set_priority(session, priority):
            self._last = session, priority


def set_group_priority(session: int, priority: Priority) -> bool:
    """Set the priority of a session among others; returns as `set_priority`. Sessions that it starts do not inherit it.

    Nothing is changed where Linux does not schedule sessions as groups, or if the process `session` does not lead its
    session: an agent that a shell starts is in the session of the terminal. Negative values need ``CAP_SYS_NICE``.
    """
    try:
        if os.getsid(session) == session:
            Path(f"/proc/{session}/autogroup").write_text(str(int(priority)))
    except BlockingIOError:  # without CAP_SYS_ADMIN, Linux allows one change in 100 ms
        return False
    except OSError:
        pass
    return True
