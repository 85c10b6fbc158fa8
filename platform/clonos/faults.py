"""Named points of the protocol at which a test may kill, stop or fail the process.

Without ``CLONOS_FAULT`` in the environment `reach` returns at once. With it, for example
``CLONOS_FAULT=lane-committed,epoch=3,lane=0:kill``, the process that reaches the point (and the values)

* ``kill``: sends SIGKILL to the driver's process group and its own (a crash of the host process),
* ``stop``: sends SIGSTOP to both groups, so that a test can let a superseded driver continue later,
* ``raise``: raises `FaultInjected`, a failure inside the process,
* ``lose``: sends SIGKILL to itself alone (a lost Python worker),
* ``note``: only appends the fault to the file ``CLONOS_FAULT_LOG``,
* ``hold``: waits until the file ``<CLONOS_FAULT_LOG>.go`` exists, to synchronise several processes, or
  ``<CLONOS_FAULT_LOG>.<fault>.go``, to release only this process.

Several faults are separated by ``;``. Each trigger is first appended to the file ``CLONOS_FAULT_LOG``.
``raise``, ``lose``, ``hold`` and ``stop`` trigger once for each log file, so that a later attempt passes the point.
They trigger in the first of the driver's processes that reaches the point.
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

# The steps of the protocol, in order; Kafka's lanes reach `state-committed` first. Tests take their lists from here.
CLAIM_POINTS: Final = (
    "control-initialised",
    "control-claimed",
    "lane-claim-initialised",
    "lane-claimed",
    "claim-checked",
)
LANE_POINTS: Final = (
    "lane-initialised",
    "lane-tail-read",
    "lane-decided",
    "lane-begun",
    "lane-produced",
    "state-committed",
    "lane-marked",
    "lane-committed",
)
# Determinants are recorded in Python workers, and other sinks publish their lanes there. The rest is in the driver.
EPOCH_POINTS: Final = (
    "offsets-logged",
    "plan-committed",
    "determinants-acknowledged",
    *LANE_POINTS,
    "epoch-committed",
    "epoch-done",
)
STEP_POINTS: Final = ("step-begun", "step-produced", "step-marked", "step-committed")  # of live queries
RESCALE_POINTS: Final = ("rescaled-state-copied", "rescale-committed")
POINTS: Final = frozenset((*CLAIM_POINTS, *EPOCH_POINTS, *STEP_POINTS, *RESCALE_POINTS))
DRIVER_GROUP: Final = "CLONOS_DRIVER_PGID"


class FaultInjected(RuntimeError):
    """The exception of an injected fault with the action ``raise``, and of a lost task."""


@dataclass(frozen=True)
class _Fault:
    point: str
    values: tuple[tuple[str, str], ...]
    action: str

    @property
    def name(self) -> str:
        return ",".join([self.point, *(f"{key}={value}" for key, value in self.values)])

    def matches(self, point: str, values: Mapping[str, object]) -> bool:
        return point == self.point and all(str(values.get(key)) == value for key, value in self.values)


def parse(text: str) -> tuple[_Fault, ...]:
    """Parse the value of ``CLONOS_FAULT``; `ValueError` for an unknown point or action."""
    faults = []
    for fault in filter(None, text.split(";")):
        target, _, action = fault.rpartition(":")
        point, *values = target.split(",")
        if point not in POINTS or action not in {"kill", "stop", "raise", "lose", "hold", "note"}:
            raise ValueError(f"CLONOS_FAULT: no such point or action: {fault!r}")
        pairs = (value.partition("=") for value in values)
        faults.append(_Fault(point, tuple((key, value) for key, _, value in pairs), action))
    return tuple(faults)


_FAULTS = parse(os.environ.get("CLONOS_FAULT", ""))
_injected = False  # whether `injecting` set `_FAULTS`


_acts: list[tuple[_Fault, Callable[[], None]]] = []


def reach(point: str, **values: object) -> None:
    """Report that this process has reached `point`, which triggers the faults for it.

    `values`, such as epoch, lane and query, are compared with those that the fault names.
    """
    if not _FAULTS and not _acts:
        return
    for fault in _FAULTS:
        if fault.matches(point, values):
            _trigger(fault)
    for fault, act in list(_acts):
        if fault.matches(point, values):
            act()


def armed() -> bool:
    """Whether this process has faults, so that `reach` may do something."""
    return bool(_FAULTS or _acts)


@contextlib.contextmanager
def injecting(faults: str, log: Path) -> Iterator[None]:
    """Inside the context, this process has the faults of the text `faults`, in the form of ``CLONOS_FAULT``.

    ``lose`` raises `FaultInjected` here: the task is lost, not the process.

    Raises:
        ValueError: The text names an unknown point or action.
    """
    global _FAULTS, _injected
    before = _FAULTS, _injected, os.environ.get("CLONOS_FAULT_LOG")
    _FAULTS, _injected = parse(faults), True
    os.environ["CLONOS_FAULT_LOG"] = str(log)
    try:
        yield
    finally:
        _FAULTS, _injected, log_before = before
        if log_before is None:
            del os.environ["CLONOS_FAULT_LOG"]
        else:
            os.environ["CLONOS_FAULT_LOG"] = log_before


@contextlib.contextmanager
def acting(point: str, act: Callable[[], None], **values: object) -> Iterator[None]:
    """Inside the context, call `act` whenever this process reaches `point` (else `ValueError`) with these values."""
    if point not in POINTS:
        raise ValueError(f"there is no point {point!r}; there are {', '.join(sorted(POINTS))}")
    entry = (_Fault(point, tuple((key, str(value)) for key, value in values.items()), "call"), act)
    _acts.append(entry)
    try:
        yield
    finally:
        _acts.remove(entry)


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
        while log and not any(Path(f"{log}{suffix}.go").exists() for suffix in ("", f".{fault.name}")):
            time.sleep(0.005)
        return
    if fault.action == "lose" and _injected:
        raise FaultInjected(f"the worker was lost at {fault.name}")
    if fault.action == "lose":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.action == "note":
        return
    number = signal.SIGKILL if fault.action == "kill" else signal.SIGSTOP
    driver = int(os.environ.get(DRIVER_GROUP, "0"))
    # Spark's Python workers have a process group of their own, below the driver's JVM.
    if driver and driver != os.getpgrp():
        os.killpg(driver, number)
    os.killpg(os.getpgrp(), number)


def _first(lock_file: Path) -> bool:
    """Whether this process is the first to create `lock_file`.

    Two lanes may reach a point at the same time. A second SIGSTOP, sent after the test's SIGCONT, would last for ever.
    """
    try:
        lock_file.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
