"""One task about a savepoint, as a process of its own: it may bring a JVM, take long, and be ended at any moment.

``python -m clonos.agent.savepoints``: the `TaskOrder` on standard input, a `TaskResult` on standard output.
"""

from __future__ import annotations

import sys
from typing import Any

from clonos.engine.savepoint import delete_savepoint, take_savepoint
from clonos.errors import ClonosError, SpecError
from clonos.resources.failures import failure_of
from clonos.resources.hosts import TaskOrder, TaskResult


def do(order: TaskOrder) -> TaskResult:
    """Do it; an error becomes the result's failure."""
    try:
        return TaskResult(instance="", ok=True, result=_done(order))
    except Exception as error:
        known = error if isinstance(error, ClonosError) else ClonosError(f"{type(error).__name__}: {error}")
        return TaskResult(instance="", ok=False, failure=failure_of(known))


def _done(order: TaskOrder) -> dict[str, Any]:
    names = ("location", "target") if order.kind == "savepoint" else ("location",)
    missing = [name for name in names if not isinstance(order.arguments.get(name), str)]
    if missing:
        raise SpecError(f"The task {order.kind} lacks {', '.join(missing)}.")
    values = [order.arguments[name] for name in names]
    if order.kind == "savepoint":
        return take_savepoint(*values)._asdict()
    delete_savepoint(*values)
    return {}


if __name__ == "__main__":
    sys.stdout.write(do(TaskOrder.model_validate_json(sys.stdin.read())).model_dump_json())
