"""CPU priority of processes that warm up or wait: they yield to drivers.

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

    DRIVER = 0  # also a standby that is not READY yet: until then a failure leads to a cold restart
    POOL = 5  # a pool driver, which warms up for the next failures
    WAITING = 10  # a READY standby, which repeats its rehearsals


def may_raise() -> bool:
    """Whether this process may raise priorities."""
    capabilities = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return capabilities is not None and bool(int(capabilities[1], 16) >> _CAP_SYS_NICE & 1)


def set_priority(session: int, priority: Priority) -> None:
    """Set the priority of every thread of a session, and of its later processes.

    Only a process with the capability ``CAP_SYS_NICE``, such as root, can raise a priority again. Without it nothing is
    changed.
    """
    if not may_raise():
        return
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == session:
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    with contextlib.suppress(OSError):
                        os.setpriority(os.PRIO_PROCESS, int(thread.name), priority)
    with contextlib.suppress(OSError):  # a kernel without such groups has no file
        Path(f"/proc/{session}/autogroup").write_text(str(int(priority)))
