"""Processes as the kernel knows them: to whom they belong, what they cost."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import psutil

from clonos.agent.process import RUN

_TICKS: Final = os.sysconf("SC_CLK_TCK")


def environment(pid: int) -> dict[str, str]:
    """Of a process; empty if it is gone."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (one.partition(b"=") for one in raw.split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def of_home(home: Path) -> Iterator[tuple[psutil.Process, str]]:
    """All processes of a platform, and of which run: by their environment, which whatever they start inherits."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            theirs = environment(process.pid)
            if theirs.get("CLONOS_HOME") == str(home) and process.status() != psutil.STATUS_ZOMBIE:
                yield process, theirs.get(RUN, "")


def shown(process: psutil.Process) -> str:
    """A process, for people."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return f"{process.pid} {' '.join(process.cmdline())[:120]}"
    return f"{process.pid} (gone)"


def with_children(process: psutil.Process) -> list[psutil.Process]:
    """A process and all that it has started."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill(groups: Iterable[int], members: Iterable[psutil.Process]) -> None:
    """SIGKILL these process groups, then whatever of these processes is left."""
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    for one in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def session(leader: int) -> list[psutil.Process]:
    """The processes of a session."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == leader:
                found.append(process)
    return found


def cpu_s(processes: Iterable[psutil.Process]) -> dict[str, float]:
    """CPU seconds that they used so far, with the children that they have waited for, by what they are."""
    used: dict[str, float] = {}
    for process in processes:
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            name, _, rest = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")
            kind = name.partition("(")[2]
            ticks = sum(int(field) for field in rest.split()[11:15])
            used[kind] = used.get(kind, 0.0) + ticks / _TICKS
    return used


def memory_mb(processes: Iterable[psutil.Process]) -> dict[str, int]:
    """Memory by what they are; pages that several share count in parts (PSS)."""
    found: dict[str, float] = {}
    for process in processes:
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            kind = Path(f"/proc/{process.pid}/comm").read_text().strip()
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                name, _, value = line.partition(":")
                if name == "Pss":
                    found[kind] = found.get(kind, 0.0) + int(value.split()[0]) / 1024
    return {kind: round(size) for kind, size in found.items()}
