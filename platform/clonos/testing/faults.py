"""Failures at named points of the protocol, in this process or in one that a test starts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clonos import faults


@dataclass
class Aborted:
    """Whether the point was reached."""

    reached: bool = False


@contextlib.contextmanager
def abort(point: str, **where: object) -> Iterator[Aborted]:
    """Raise `clonos.faults.FaultInjected` at a point of the protocol, the first time it is reached.

    For what runs in this process: the driver's points of a job under `run_through`, or the lane's points of a sink
    called directly. Points that Python workers reach need `fault_environment` and a process of their own.

    Args:
        point: One of `clonos.faults.POINTS`.
        where: Only there: ``epoch=3``, ``query="words"``, ``lane=0``, ``replay=True``, …

    Raises:
        ValueError: There is no such point.
    """
    aborted = Aborted()

    def act() -> None:
        if not aborted.reached:
            aborted.reached = True
            raise faults.FaultInjected(f"aborted at {point}")

    with faults.acting(point, act, **where):
        yield aborted


def fault_environment(point: str, *, action: str = "kill", log: Path | None = None, **where: object) -> dict[str, str]:
    """The environment of a process that fails at a point of the protocol, in the driver or a Python worker.

    Args:
        point: One of `clonos.faults.POINTS`.
        action: ``kill``, ``stop``, ``raise``, ``note`` or ``hold`` (`clonos.faults` says what each does).
        log: A file that each trigger is noted in; without it nothing but ``kill`` is possible, because the others
            need it to happen once.
        where: Only there: ``epoch=3``, …

    Raises:
        ValueError: There is no such point or action, or `log` is missing.
    """
    if action != "kill" and log is None:
        raise ValueError(f"action={action!r} needs log=, a file that says whether it has happened")
    text = ",".join([point, *(f"{key}={value}" for key, value in where.items())])
    faults.parse(f"{text}:{action}")
    return {"CLONOS_FAULT": f"{text}:{action}", **({"CLONOS_FAULT_LOG": str(log)} if log else {})}
