"""What the linter says of a job that starts: told, never a reason to stop."""

from __future__ import annotations

import inspect
from dataclasses import asdict
from pathlib import Path

import structlog

from clonos.job import Job
from clonos.lint import lint
from clonos.runner.events import Emit


def advise(job: Job, emit: Emit) -> None:
    """Emit one ``lint`` event for each finding in the job's file and the modules beside it that it imports."""
    if job.directory is None:
        return
    try:
        findings = lint([Path(inspect.getfile(inspect.unwrap(job.function)))]).findings
    except Exception as error:  # whatever the linter stumbles over, the job may be sound
        structlog.get_logger("clonos").warning("lint-failed", job=job.spec.name, error=str(error))
        return
    for finding in findings:
        emit("lint", **asdict(finding))
