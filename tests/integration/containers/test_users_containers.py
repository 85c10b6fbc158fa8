"""What docs/testing-jobs.md offers to users: their test of a job, on Kafka in a container."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.brokers.container import kafka_image
from support.page_shell import ROOT, PageFile, blocks, steps

pytestmark = [pytest.mark.engine, pytest.mark.turn(8)]

PAGE = ROOT / "docs/testing-jobs.md"
STATE = ROOT / "docs/howto/keep-state.md"


def test_the_fixtures_run_a_job_on_kafka_in_a_container(tmp_path: Path) -> None:
    (conftest,) = [code for code in blocks(PAGE, "python") if "clonos.testing.containers" in code]
    (test,) = [code for code in blocks(PAGE, "python") if "test_each_order_has_a_total" in code]
    (job,) = [step for step in steps(STATE) if isinstance(step, PageFile) and step.path == "job.py"]
    for name, text in {"conftest.py": conftest, "test_totals.py": test, "job.py": job.text}.items():
        (tmp_path / name).write_text(text)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        # testcontainers' reaper is an image of its own, which may be unavailable; the fixture removes its container.
        env={**os.environ, "CLONOS_KAFKA_IMAGE": kafka_image(), "TESTCONTAINERS_RYUK_DISABLED": "true"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"\b1 passed", ran.stdout)
