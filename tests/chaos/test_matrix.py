"""The table in README.md lists every chaos test with its faults, targets and topology."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.chaos(fault="none", target="", topology="no process")
def test_the_readme_lists_every_chaos_test() -> None:
    command = [sys.executable, str(Path(__file__).with_name("matrix.py")), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, f"run tests/chaos/matrix.py\n{done.stdout}{done.stderr}"
