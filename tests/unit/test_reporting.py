"""Tests whose backend is missing are skipped, and the end of the report says why; where all are wanted they fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
TEST = "tests/store/test_store_schema.py::test_the_migrations_make_the_tables_that_the_code_has"


def run(folder: Path, **environment: str) -> tuple[int, str, str]:
    """Exit code, report and summary of one test on SQLite and PostgreSQL, where there is no PostgreSQL."""
    summary = folder / "summary.txt"
    chosen = {"CLONOS_TEST_POSTGRES": str(folder), "CLONOS_TEST_SUMMARY": str(summary), **environment}
    kept = {name: value for name, value in os.environ.items() if name not in ("CLONOS_TESTS", "PYTEST_ADDOPTS")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", TEST, "-p", "no:cacheprovider"],
        cwd=TESTS.parent,
        env={**kept, **chosen},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr, summary.read_text()


def test_a_missing_database_is_said_at_the_end(tmp_path: Path) -> None:
    code, report, summary = run(tmp_path)
    assert code == 0, report
    assert "1 passed, 1 skipped" in summary
    line = f"PostgreSQL: not run. CLONOS_TEST_POSTGRES names {tmp_path}, which holds no initdb."
    assert line in report.splitlines()[-4:]
    assert line in summary


def test_where_all_tests_are_wanted_it_is_an_error(tmp_path: Path) -> None:
    code, report, summary = run(tmp_path, CLONOS_TESTS="all")
    assert code == 1, report
    assert "which holds no initdb" in report
    assert "1 passed, 1 error" in summary
