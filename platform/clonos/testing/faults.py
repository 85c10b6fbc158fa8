"""Injects failures at named points of the protocol, in this process or in a process that a test starts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clonos import faults


@dataclass
class Aborted:
    """The result of `abort`: `reached` is whether the point was reached."""

    reached: bool = False


@contextlib.contextmanager
def abort(point: str, **where: object) -> Iterator[Aborted]:
    """Raise `clonos.faults.FaultInjected` inside the context, the first time that this process reaches a point of the
    protocol.

    This process reaches the driver's points of a job under `run_through`, and the lane's points of a sink that the test
    calls. For points in Python workers start a process with `fault_environment`.

    Args:
        point: One of `clonos.faults.POINTS`.
        where: Values at which the point counts: ``epoch=3``, ``query="words"``, ``lane=0``, ``replay=True``, …

    Raises:
        ValueError: `point` is unknown.

    Example::

        with abort("epoch-committed", epoch=1) as aborted:
            run_through(job, spark=spark, kafka=kafka, checkpoint=tmp_path)
        assert aborted.reached
    """
    aborted = Aborted()

    def act() -> None:
        if not aborted.reached:
            aborted.reached = True
            raise faults.FaultInjected(f"aborted at {point}")

    with faults.acting(point, act, **where):
        yield aborted


def triggered(log: Path, fault: str) -> bool:
    """Whether a process with the variables of `fault_environment` has reached the point of a fault.

    Args:
        log: The `log` of `fault_environment`.
        fault: The point with the values of `fault_environment`, in the same order: ``"lane-committed,epoch=3"``.
    """
    return log.exists() and fault in log.read_text().splitlines()


def fault_environment(point: str, *, action: str = "kill", log: Path | None = None, **where: object) -> dict[str, str]:
    """Environment variables that let a process (a driver or its Python workers) fail at a point of the protocol.

    Args:
        point: One of `clonos.faults.POINTS`.
        action: ``kill`` (SIGKILL to the driver's process group and to the process's own), ``lose`` (SIGKILL to the
            process alone), ``stop`` (SIGSTOP to both groups), ``raise`` (`FaultInjected`), ``hold`` (wait until the
            file ``<log>.go`` exists) or ``note`` (only append to `log`).
        log: File to which each trigger is appended. Only ``kill`` is possible without it. With it, ``lose``, ``stop``,
            ``raise`` and ``hold`` trigger once.
        where: Values that the point must have to trigger, such as ``epoch=3``.

    Raises:
        ValueError: `point` or `action` is unknown, or `log` is missing for an action other than ``kill``.

    Returns:
        Variables to add to the environment of the process, for example of ``clonos run job.py``.
    """
    if action != "kill" and log is None:
        raise ValueError(f"action={action!r} needs log=, a file that says whether it has happened")
    text = ",".join([point, *(f"{key}={value}" for key, value in where.items())])
    faults.parse(f"{text}:{action}")
    return {"CLONOS_FAULT": f"{text}:{action}", **({"CLONOS_FAULT_LOG": str(log)} if log else {})}
