"""Checks a Spark cluster from this host: runs the check application, and reads what it prints."""

from __future__ import annotations

import contextlib
import json

from pydantic import ValidationError

from clonos.documents import explain
from clonos.errors import BY_SLUG, ClonosError, SpecError
from clonos.jobs.cluster import ClusterReport, ClusterSpec
from clonos.resources.failures import failure_of
from clonos.resources.hosts import HostTask, TaskResult


def cluster_of(task: HostTask) -> ClusterSpec:
    """The cluster that a host task checks, as the control plane described it.

    Raises:
        SpecError: The task has no description of a cluster.
    """
    try:
        return ClusterSpec.model_validate(task.arguments.get("spec"))
    except ValidationError as error:
        raise SpecError(f"The task {task.kind} has no description of a cluster: {explain(error)}.") from error


def timeout_of(task: HostTask) -> float | None:
    """Seconds after which a host task is ended; None: it has no limit."""
    seconds = task.arguments.get("timeout_s")
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None


def result_of(exit_code: int | None, out: str, errors: str) -> TaskResult:
    """The result of a check, from the exit code of its process, its output and its errors."""
    if exit_code == 0:
        try:
            report = ClusterReport.model_validate_json(out.strip().rpartition("\n")[2])
            return TaskResult(instance="", ok=True, result=report.model_dump(mode="json"))
        except ValidationError as error:
            errors = f"it printed no report: {explain(error)}"
    return TaskResult(instance="", ok=False, failure=failure_of(_error_in(errors, exit_code)))


def _error_in(text: str, exit_code: int | None) -> ClonosError:
    """The error that a check printed as its last line of JSON: ``error`` (a slug), ``what``, ``kept``, ``hint``."""
    lines = text.strip().splitlines() or ["it wrote no error"]
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            printed = json.loads(line)
            if isinstance(printed, dict) and {"error", "what"} <= printed.keys():
                parts = {name: str(printed.get(name, "")) for name in ("kept", "hint")}
                return BY_SLUG.get(str(printed["error"]), ClonosError)(str(printed["what"]), **parts)
    return ClonosError(f"The check exited with {exit_code}: {lines[-1]}")
