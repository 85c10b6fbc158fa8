"""Executes a host task in its own process, because it may start a JVM, run long, and be killed.

It copies or deletes a savepoint, or verifies the output of a job.

``python -m clonos.agent.task_process``: the `HostTask` on standard input, a `TaskResult` on standard output.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

import msgspec

from clonos.audit.output_audit import audit_output
from clonos.driver import savepoint
from clonos.driver.checkpoint_owner import JobOwner
from clonos.errors import ClonosError, SpecError
from clonos.resources.failures import failure_of
from clonos.resources.hosts import HostTask, TaskResult
from clonos.resources.verification import MOST_FAULTS, Verification, VerifyTask
from clonos.settings import Settings
from clonos.spark.file_systems import file_systems


def execute(task: HostTask) -> TaskResult:
    """Execute a host task; an error becomes the failure of the result."""
    try:
        return TaskResult(instance="", ok=True, result=_execute(task))
    except Exception as error:
        failure = error if isinstance(error, ClonosError) else ClonosError(f"{type(error).__name__}: {error}")
        return TaskResult(instance="", ok=False, failure=failure_of(failure))


def _execute(task: HostTask) -> dict[str, Any]:
    if task.kind == "verify":
        return _verify(VerifyTask.model_validate(task.arguments))
    names = ("location", "target", "job") if task.kind == "savepoint" else ("location", "job")
    missing = [name for name in names if not isinstance(task.arguments.get(name), str)]
    if missing:
        raise SpecError(f"The task {task.kind} lacks {', '.join(missing)}.")
    locations = [task.arguments[name] for name in names if name != "job"]
    owner = JobOwner(task.arguments["job"], tuple(task.arguments.get("subjects", ())))
    with file_systems(task.arguments.get("sparkConf", {}), locations) as folder:
        if task.kind == "savepoint":
            return savepoint.take(*map(folder, locations), owner=owner)._asdict()
        savepoint.delete(folder(locations[0]), owner)
    return {}


def _verify(task: VerifyTask) -> dict[str, Any]:
    audit = audit_output(Settings().kafka, task.job, topics=task.topics, seconds=task.seconds)
    fields = msgspec.to_builtins(audit)
    fields |= {name: fields[name][:MOST_FAULTS] for name in ("repeated", "incomplete")}
    state = {"clean": audit.clean, "contradicted": audit.contradicted}
    return Verification(at=datetime.now(UTC), **state, **fields).model_dump(mode="json")


if __name__ == "__main__":
    sys.stdout.write(execute(HostTask.model_validate_json(sys.stdin.read())).model_dump_json())
