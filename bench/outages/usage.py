"""CPU time and memory of processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import psutil

_TICKS: Final = os.sysconf("SC_CLK_TCK")


def cpu_s(processes: Iterable[psutil.Process]) -> dict[str, float]:
    """CPU seconds used so far by command, including children that were waited for."""
    used: dict[str, float] = {}
    for process in processes:
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            name, _, rest = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")
            kind = name.partition("(")[2]
            ticks = sum(int(field) for field in rest.split()[11:15])
            used[kind] = used.get(kind, 0.0) + ticks / _TICKS
    return used


def memory_mb(processes: Iterable[psutil.Process]) -> dict[str, int]:
    """Memory in MB by command; shared pages count proportionally (PSS)."""
    sizes: dict[str, float] = {}
    for process in processes:
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            kind = Path(f"/proc/{process.pid}/comm").read_text().strip()
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                name, _, value = line.partition(":")
                if name == "Pss":
                    sizes[kind] = sizes.get(kind, 0.0) + int(value.split()[0]) / 1024
    return {kind: round(size) for kind, size in sizes.items()}
