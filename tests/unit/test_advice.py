"""What the linter says when a job starts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from clonos.job import Job, load_job
from clonos.runner.advice import advise
from clonos.runner.events import Events, log_event

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


def test_each_finding_is_an_event_and_a_warning(job: Job, tmp_path: Path) -> None:
    told = Events("advised", tmp_path / "events.jsonl", [log_event])
    with capture_logs() as logs:
        advise(job, told.emit)
    told.close()
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(one["event"], one["code"], Path(one["file"]).name, one["line"]) for one in events] == [
        ("lint", "CL003", "advice_beside.py", 4),
        ("lint", "CL001", "job.py", 8),
    ]
    assert [(one["log_level"], one["event"], one["code"]) for one in logs] == [
        ("warning", "lint", "CL003"),
        ("warning", "lint", "CL001"),
    ]


def test_it_never_stops_a_job(job: Job, tmp_path: Path) -> None:
    (tmp_path / "advice_beside.py").write_text("def (")
    told = Events("advised", None)
    with capture_logs() as logs:
        advise(job, told.emit)
    assert [(one["log_level"], one["event"]) for one in logs] == [("warning", "lint-failed")]
