"""Emits the linter's findings as events when a job starts. Findings never stop the job."""

from __future__ import annotations

import inspect
from dataclasses import asdict
from pathlib import Path

import structlog

from clonos.jobs.definition import Job
from clonos.lint import lint
from clonos.telemetry.driver_events import Lint
from clonos.telemetry.events import Emit


def advise(job: Job, emit: Emit) -> None:
    """Run the linter on the job's file and the modules beside it that the file imports, and emit one ``lint``
    event for each finding.
    """
    if job.directory is None:
        return
    try:
        findings = lint([Path(inspect.getfile(inspect.unwrap(job.function)))]).findings
    except Exception as error:  # the linter failed; the job may be sound
        structlog.get_logger("clonos").warning("lint-failed", job=job.spec.name, error=str(error))
        return
    for finding in findings:
        emit(Lint(**asdict(finding)))
