"""Named points of the protocol at which a test may kill, stop or fail the process.

Without ``CLONOS_FAULT`` in the environment `reach` returns at once. With it, for example
``CLONOS_FAULT=lane-committed,epoch=3,lane=0:kill``, the process that reaches the point (and the values)

* ``kill``: sends SIGKILL to the driver's process group and its own (a crash of the host process),
* ``stop``: sends SIGSTOP to both instead, so that a zombie can be continued later,
* ``raise``: raises `FaultInjected`, a failure inside the process,
* ``lose``: sends SIGKILL to itself alone (a lost Python worker),
* ``note``: only says so in the file ``CLONOS_FAULT_LOG``,
* ``hold``: waits until the file ``<CLONOS_FAULT_LOG>.go`` exists, to line several processes up, or
  ``<CLONOS_FAULT_LOG>.<fault>.go``, to let go of this one alone.

Several faults are separated by ``;``. Each trigger is first appended to the file ``CLONOS_FAULT_LOG``.
``raise``, ``lose``, ``hold`` and ``stop`` trigger once per log file, whichever of the driver's processes is first, so
that what goes on in them gets past.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

POINTS: Final = frozenset(
    {
        # one epoch, driver
        "offsets-logged",
        "plan-committed",
        "end-committed",
        "epoch-done",
        # causal services, worker
        "determinants-acknowledged",
        # the sink's commit protocol, worker
        "lane-initialised",
        "lane-tail-read",
        "lane-decided",
        "lane-begun",
        "lane-produced",
        "state-committed",
        "lane-marked",
        "lane-committed",
        # claiming, driver
        "control-initialised",
        "control-claimed",
        "lane-claim-initialised",
        "lane-claimed",
        "claim-checked",
    }
)
DRIVER_GROUP: Final = "CLONOS_DRIVER_PGID"


class FaultInjected(RuntimeError):
    """A failure that a test asked for."""


@dataclass(frozen=True)
class _Fault:
    point: str
    where: tuple[tuple[str, str], ...]
    action: str

    @property
    def name(self) -> str:
        return ",".join([self.point, *(f"{key}={value}" for key, value in self.where)])

    def meant(self, point: str, where: Mapping[str, object]) -> bool:
        return point == self.point and all(str(where.get(key)) == value for key, value in self.where)


def parse(text: str) -> tuple[_Fault, ...]:
    """What ``CLONOS_FAULT`` asks for.

    Raises:
        ValueError: There is no such point or action.
    """
    faults = []
    for one in filter(None, text.split(";")):
        target, _, action = one.rpartition(":")
        point, *where = target.split(",")
        if point not in POINTS or action not in {"kill", "stop", "raise", "lose", "hold", "note"}:
            raise ValueError(f"CLONOS_FAULT: no such point or action: {one!r}")
        faults.append(_Fault(point, tuple((k, v) for k, _, v in (w.partition("=") for w in where)), action))
    return tuple(faults)


_FAULTS = parse(os.environ.get("CLONOS_FAULT", ""))


_acts: list[tuple[_Fault, Callable[[], None]]] = []


def reach(point: str, **where: object) -> None:
    """Say that the protocol reached `point`; `where` tells which epoch, lane and query."""
    if not _FAULTS and not _acts:
        return
    for fault in _FAULTS:
        if fault.meant(point, where):
            _trigger(fault)
    for fault, act in list(_acts):
        if fault.meant(point, where):
            act()


@contextlib.contextmanager
def acting(point: str, act: Callable[[], None], **where: object) -> Iterator[None]:
    """Call `act` whenever this process reaches `point` (and the values).

    Raises:
        ValueError: There is no such point.
    """
    if point not in POINTS:
        raise ValueError(f"there is no point {point!r}; there are {', '.join(sorted(POINTS))}")
    one = (_Fault(point, tuple((key, str(value)) for key, value in where.items()), "call"), act)
    _acts.append(one)
    try:
        yield
    finally:
        _acts.remove(one)


def _trigger(fault: _Fault) -> None:
    log = os.environ.get("CLONOS_FAULT_LOG")
    if log:
        if fault.action in {"raise", "lose", "hold", "stop"} and not _first(Path(f"{log}.{fault.name}.once")):
            return
        with Path(log).open("a") as out:
            out.write(fault.name + "\n")
    if fault.action == "raise":
        raise FaultInjected(f"fault injected at {fault.name}")
    if fault.action == "hold":
        while log and not any(Path(f"{log}{which}.go").exists() for which in ("", f".{fault.name}")):
            time.sleep(0.005)
        return
    if fault.action == "lose":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.action == "note":
        return
    number = signal.SIGKILL if fault.action == "kill" else signal.SIGSTOP
    driver = int(os.environ.get(DRIVER_GROUP, "0"))
    # Spark's Python workers live in a process group of their own, below the driver's JVM.
    if driver and driver != os.getpgrp():
        os.killpg(driver, number)
    os.killpg(os.getpgrp(), number)


def _first(claim: Path) -> bool:
    """Two lanes may reach a point at once; a second SIGSTOP, sent after the test's SIGCONT, would last for ever."""
    try:
        claim.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
