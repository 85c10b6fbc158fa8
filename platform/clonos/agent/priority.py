"""CPU priority of standbys: they warm up at a lower priority than drivers.

Only root can raise a priority again, so an agent of another user changes none.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import psutil

_LOW_PRIORITY: Final = 10


def lower_priority(pid: int) -> None:
    """Lower the CPU priority of a driver process that was just started, and of its later child processes."""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, pid, _LOW_PRIORITY)


def restore_priority(session: int) -> None:
    """Restore the normal CPU priority of every thread in a driver's session, at the promotion of the driver."""
    if os.geteuid() != 0:
        return
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == session:
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    with contextlib.suppress(OSError):
                        os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)
