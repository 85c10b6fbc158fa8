"""What a host has, what is in use, and what a driver and a standby cost here: measured, not configured.

The memory of a process is its proportional set size: pages that N processes share count 1/N for each, so the Python
workers that a driver forks are not counted as copies of it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import psutil

from clonos.resources.host_capacity import HostCapacity, expected_bytes
from clonos.resources.hosts import RunSpec

MEASURED_EVERY_S: Final = 10.0
FIRST_MEASURED_S: Final = 1.5
# A driver or standby has loaded its classes and forked its workers after this time.
GROWS_FOR_S: Final = 90.0


@dataclass(frozen=True)
class MeasuredProcess:
    """The process of a run."""

    standby: bool  # whether it is a standby
    pid: int  # its process id
    age_s: float  # seconds since the run's attempt began. A pool driver is older than the attempt that it serves.


class CapacityMeter:
    """Measures this host.

    The cost of a driver or standby is the largest memory among those that have grown. It is kept while none runs.

    Example:
        meter = CapacityMeter()
        meter.measure([MeasuredProcess(standby=False, pid=4711, age_s=600.0)]).driver_bytes
    """

    def __init__(self) -> None:
        self._cost: dict[bool, int | None] = {False: None, True: None}  # by "is a standby"
        self._cpu = _cpu_s()

    def measure(self, processes: Iterable[MeasuredProcess]) -> HostCapacity:
        """Measure now. It takes a few milliseconds for each process, so it runs in a thread.

        Raises:
            OSError: The system does not answer, for instance because too many files are open.
        """
        measured = [(process, used) for process in processes if (used := _memory_bytes(process.pid)) is not None]
        for standby in (False, True):
            grown = [used for process, used in measured if process.standby is standby and process.age_s >= GROWS_FOR_S]
            self._cost[standby] = max(grown, default=self._cost[standby])
        memory = psutil.virtual_memory()
        capacity = HostCapacity(
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            busy_cores=self._busy_cores(),
            memory_bytes=memory.total,
            available_bytes=memory.available,
            driver_bytes=self._cost[False],
            standby_bytes=self._cost[True],
        )
        # A young process will take what others took.
        return capacity.less(
            sum(
                max(0, (expected_bytes(capacity, [], standby=process.standby) or 0) - used)
                for process, used in measured
                if process.age_s < GROWS_FOR_S
            )
        )

    def _busy_cores(self) -> float:
        """Cores that were in use since the last measurement, by all processes of the machine."""
        (since, before), (now, busy) = self._cpu, _cpu_s()
        if now - since < 1.0:
            return 0.0
        self._cpu = now, busy
        return round(max(0.0, (busy - before) / (now - since)), 2)


def _cpu_s() -> tuple[float, float]:
    """Return the time, and the CPU seconds that all processes of the machine have used."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "steal", 0.0)
    guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # also part of user and nice
    return time.monotonic(), sum(times) - idle - guest


def _memory_bytes(pid: int) -> int | None:
    """Memory of a process with its descendants; None if it has exited."""
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return None
    used = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            try:
                used += process.memory_full_info().pss
            except (AttributeError, psutil.AccessDenied):  # not Linux, or a process of another user
                used += process.memory_info().rss
    return used


def measure_checkpoint(run: RunSpec, home: Path) -> dict[str, int] | None:
    """Return the bytes of each query's checkpoint below `home` (``CLONOS_HOME``); None: they are not on this host."""
    parts = urlsplit(run.spec.spec.checkpoint or str(home.absolute() / "jobs" / run.name / "checkpoint"))
    if parts.scheme not in ("", "file"):
        return None
    folder = Path(unquote(parts.path) if parts.scheme else parts.path)
    try:
        queries = [path for path in folder.iterdir() if (path / "metadata").is_file()]
    except OSError:
        return None
    return {query.name: sum(_file_sizes(query)) for query in queries}


def _file_sizes(folder: str | Path) -> Iterator[int]:
    """Sizes of all files, except those that Spark removes during the measurement."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        yield from _file_sizes(entry.path)
                    else:
                        yield entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue
    except OSError:
        return
