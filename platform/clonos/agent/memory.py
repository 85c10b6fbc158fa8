"""A limit to the memory of a driver and all that it starts, where the host has cgroup v2 with the memory controller."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from clonos.agent.place import plain


class MemoryLimits:
    """Cgroups of drivers, below one that the agent may change.

    Args:
        parent: That one; None if there is none.
    """

    def __init__(self, parent: Path | None) -> None:
        self._parent = parent if parent is not None and _delegated(parent) else None

    @property
    def available(self) -> bool:
        """Whether a limit is really enforced."""
        return self._parent is not None

    def make(self, run: str, limit_mb: int) -> Path | None:
        """A cgroup for a run, to be joined by its driver; None if there can be none."""
        if self._parent is None:
            return None
        group = self._parent / f"clonos-{plain(run)}"
        group.mkdir(exist_ok=True)
        (group / "memory.max").write_text(str(limit_mb << 20))
        with contextlib.suppress(OSError):  # not on every kernel
            (group / "memory.oom.group").write_text("1")
        return group

    def remove(self, run: str) -> None:
        """Give a run's cgroup back, once nothing runs in it."""
        if self._parent is not None:
            with contextlib.suppress(OSError):
                (self._parent / f"clonos-{plain(run)}").rmdir()


def join(group: Path, pid: int) -> None:
    """Put a process into a cgroup; what it starts later is in it too."""
    (group / "cgroup.procs").write_text(str(pid))


def own_cgroup() -> Path | None:
    """The cgroup (v2) of this process, where it is mounted."""
    try:
        own = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        mounts = [line.split(" ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    except (OSError, StopIteration):
        return None
    mounted = next((one[4] for one in mounts if "cgroup2" in one[one.index("-") + 1 :]), None)
    return Path(mounted) / own.lstrip("/") if mounted else None


def _delegated(parent: Path) -> bool:
    """Whether groups with a memory limit can be made below."""
    try:
        if "memory" not in (parent / "cgroup.controllers").read_text().split():
            return False
        if "memory" not in (parent / "cgroup.subtree_control").read_text().split():
            (parent / "cgroup.subtree_control").write_text("+memory")
    except OSError:
        return False
    return os.access(parent, os.W_OK)
