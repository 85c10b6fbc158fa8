"""Memory limits of drivers and their child processes, on hosts with the memory controller of cgroup v2."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from clonos.agent.directories import checked_id


class MemoryLimits:
    """Creates and removes the cgroups that limit drivers' memory, in `parent`, a cgroup that the agent may change."""

    def __init__(self, parent: Path | None) -> None:
        self._parent = parent if parent is not None and _is_delegated(parent) else None

    @property
    def available(self) -> bool:
        """Whether this host can enforce memory limits."""
        return self._parent is not None

    def create(self, run: str, limit_mb: int) -> Path | None:
        """Create the cgroup of a run with a limit in MiB, and return its path; None if limits are not available."""
        if self._parent is None:
            return None
        group = self._parent / f"clonos-{checked_id(run)}"
        group.mkdir(exist_ok=True)
        (group / "memory.max").write_text(str(limit_mb << 20))
        with contextlib.suppress(OSError):  # not on every kernel
            (group / "memory.oom.group").write_text("1")
        return group

    def remove(self, run: str) -> None:
        """Remove the cgroup of a run that has no processes any more."""
        if self._parent is not None:
            with contextlib.suppress(OSError):
                (self._parent / f"clonos-{checked_id(run)}").rmdir()


def join(group: Path, pid: int) -> None:
    """Put a process and its later child processes into a cgroup."""
    (group / "cgroup.procs").write_text(str(pid))


def own_cgroup() -> Path | None:
    """Path of this process's cgroup (v2); None if none is mounted."""
    try:
        own = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        mounts = [line.split(" ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    except (OSError, StopIteration):
        return None
    mounted = next((mount[4] for mount in mounts if "cgroup2" in mount[mount.index("-") + 1 :]), None)
    return Path(mounted) / own.lstrip("/") if mounted else None


def _is_delegated(parent: Path) -> bool:
    """Whether the agent can create cgroups with a memory limit below `parent`."""
    try:
        if "memory" not in (parent / "cgroup.controllers").read_text().split():
            return False
        if "memory" not in (parent / "cgroup.subtree_control").read_text().split():
            (parent / "cgroup.subtree_control").write_text("+memory")
    except OSError:
        return False
    return os.access(parent, os.W_OK)
