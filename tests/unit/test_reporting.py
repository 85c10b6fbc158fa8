"""A test whose backend is missing is skipped, with the reason in the report; with ``CLONOS_TESTS=all`` it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
INNER = """
from support.reporting import missing

def test_without_a_backend():
    pass

def test_with_a_backend(pytestconfig):
    missing(pytestconfig, "Chromium", "There is no chromium.")
"""


def run(folder: Path, **environment: str) -> tuple[int, str, str]:
    """Exit code, report and summary of two tests; one needs a backend that is missing."""
    summary = folder / "summary.txt"
    file = folder / "test_inner.py"
    file.write_text(INNER)
    inherited = {name: value for name, value in os.environ.items() if name not in ("CLONOS_TESTS", "PYTEST_ADDOPTS")}
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    process = subprocess.run(
        [*command, str(file)],
        cwd=folder,
        env={**inherited, "PYTHONPATH": str(TESTS), "CLONOS_TEST_SUMMARY": str(summary), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return process.returncode, process.stdout + process.stderr, summary.read_text()


def test_the_report_ends_with_a_missing_backend(tmp_path: Path) -> None:
    code, report, summary = run(tmp_path)
    assert code == 0, report
    assert "1 passed, 1 skipped" in summary
    line = "Chromium: not run. There is no chromium."
    assert line in report.splitlines()[-4:]
    assert line in summary


def test_a_missing_backend_fails_where_all_tests_are_required(tmp_path: Path) -> None:
    code, report, summary = run(tmp_path, CLONOS_TESTS="all")
    assert code == 1, report
    assert "There is no chromium." in report
    assert "1 passed, 1 failed" in summary
    assert "failed: test_inner.py::test_with_a_backend (call): There is no chromium." in summary
