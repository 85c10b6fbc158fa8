"""What the linter says when a job starts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from clonos.driver.process import advise
from clonos.jobs.definition import Job
from clonos.jobs.loading import load_job
from clonos.telemetry.events import Events, log_event

JOB = """
import time
import advice_beside
import clonos

@clonos.udf("string")
def work(word):
    return time.time(), advice_beside.stamp()

@clonos.job(name="advised")
def advised(ctx):
    ctx.sink(ctx.source("words").select(work("value").alias("value")), topic="made")
"""
BESIDE = "import uuid\n\ndef stamp():\n    return uuid.uuid4()\n"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "advice_beside.py").write_text(BESIDE)
    yield load_job(tmp_path)
    for name in ("clonos_job_job", "advice_beside"):
        sys.modules.pop(name, None)


def test_advise_emits_an_event_and_a_warning_for_each_finding(job: Job, tmp_path: Path) -> None:
    events = Events("advised", tmp_path / "events.jsonl", [log_event])
    with capture_logs() as logs:
        advise(job, events.emit)
    events.close()
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(event["event"], event["code"], Path(event["file"]).name, event["line"]) for event in events] == [
        ("lint", "CL003", "advice_beside.py", 4),
        ("lint", "CL001", "job.py", 8),
    ]
    assert [(event["log_level"], event["event"], event["code"]) for event in logs] == [
        ("warning", "lint", "CL003"),
        ("warning", "lint", "CL001"),
    ]


def test_advise_never_stops_a_job(job: Job, tmp_path: Path) -> None:
    (tmp_path / "advice_beside.py").write_text("def (")
    events = Events("advised", None)
    with capture_logs() as logs:
        advise(job, events.emit)
    assert [(event["log_level"], event["event"]) for event in logs] == [("warning", "lint-failed")]
