"""Checks a Spark cluster from this host: runs the check application, and reads what it prints."""

from __future__ import annotations

import re
from typing import Final

from pydantic import ValidationError

from clonos.errors import BY_SLUG, ClonosError, SpecError
from clonos.jobs.cluster import ClusterReport, ClusterSpec
from clonos.jobs.spec import explain
from clonos.resources.failures import failure_of
from clonos.resources.hosts import HostTask, TaskResult

_ERROR: Final = re.compile(r"(?P<slug>[a-z][a-z-]*): (?P<what>.+)")
_PARTS: Final = {"Kept safe: ": "kept", "What to do: ": "hint"}


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
            report = ClusterReport.model_validate_json(out)
            return TaskResult(instance="", ok=True, result=report.model_dump(mode="json"))
        except ValidationError as error:
            errors = f"it printed no report: {explain(error)}"
    return TaskResult(instance="", ok=False, failure=failure_of(_error_in(errors, exit_code)))


def _error_in(text: str, exit_code: int | None) -> ClonosError:
    """The error that a process printed, as `clonos` prints errors: ``slug: what``, and two lines that may be absent."""
    lines = text.strip().splitlines() or ["it wrote no error"]
    for number, line in reversed(list(enumerate(lines))):
        match = _ERROR.fullmatch(line.strip())
        if match and match["slug"] in BY_SLUG:
            parts = {name: rest[len(begin) :] for rest in lines[number + 1 :] for begin, name in _begins(rest)}
            return BY_SLUG[match["slug"]](match["what"], **parts)
    return ClonosError(f"The check exited with {exit_code}: {lines[-1]}")


def _begins(line: str) -> list[tuple[str, str]]:
    return [(begin, name) for begin, name in _PARTS.items() if line.startswith(begin)]
