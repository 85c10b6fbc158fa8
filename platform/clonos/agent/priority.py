"""Standbys warm up without slowing drivers down: at a lower priority, which only root can raise again."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import psutil

_ASIDE: Final = 10


def aside(pid: int) -> None:
    """Lower the priority of a driver that was just started, and so of all that it will start."""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, pid, _ASIDE)


def full_speed(session: int) -> None:
    """Give every thread of a driver's session its priority back."""
    if os.geteuid() != 0:
        return
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == session:
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    with contextlib.suppress(OSError):
                        os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)
