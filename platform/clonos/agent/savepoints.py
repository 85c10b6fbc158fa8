"""Executes a host task (copy or delete a savepoint) in its own process: it may start a JVM, run long, and be killed.

``python -m clonos.agent.savepoints``: the `HostTask` on standard input, a `TaskResult` on standard output.
"""

from __future__ import annotations

import sys
from typing import Any

from clonos.driver import stored_savepoint
from clonos.driver.savepoint import delete_savepoint, take_savepoint
from clonos.errors import ClonosError, SpecError
from clonos.resources.failures import failure_of
from clonos.resources.hosts import HostTask, TaskResult
from clonos.spark.file_systems import file_systems, is_folder_of_host


def execute(task: HostTask) -> TaskResult:
    """Execute a host task; an error becomes the failure of the result."""
    try:
        return TaskResult(instance="", ok=True, result=_execute(task))
    except Exception as error:
        failure = error if isinstance(error, ClonosError) else ClonosError(f"{type(error).__name__}: {error}")
        return TaskResult(instance="", ok=False, failure=failure_of(failure))


def _execute(task: HostTask) -> dict[str, Any]:
    names = ("location", "target", "job") if task.kind == "savepoint" else ("location",)
    missing = [name for name in names if not isinstance(task.arguments.get(name), str)]
    if missing:
        raise SpecError(f"The task {task.kind} lacks {', '.join(missing)}.")
    locations = [task.arguments[name] for name in names if name != "job"]
    if not all(map(is_folder_of_host, locations)):
        with file_systems(task.arguments.get("sparkConf", {}), locations) as folder:
            folders = [folder(location) for location in locations]
            if task.kind == "savepoint":
                return stored_savepoint.take(*folders, job=task.arguments["job"])._asdict()
            stored_savepoint.delete(*folders)
            return {}
    if task.kind == "savepoint":
        return take_savepoint(*locations, job=task.arguments["job"])._asdict()
    delete_savepoint(*locations)
    return {}


if __name__ == "__main__":
    sys.stdout.write(execute(HostTask.model_validate_json(sys.stdin.read())).model_dump_json())
