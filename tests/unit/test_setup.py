"""`make setup` with a Python that cannot be used says which, and how to name another one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OLD = "#!/bin/sh\nexec python3 -c \"import sys; sys.version_info = (3, 10, 4, 'final', 0)\n$2\"\n"


@pytest.mark.parametrize(
    ("python", "says"),
    [("nopython", "There is no program nopython."), ("./old", "./old is Python 3.10, and Clonos needs 3.11 or newer")],
)
def test_an_unusable_python_is_named(tmp_path: Path, python: str, says: str) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("requirements.lock", "pyproject.toml"):
        (tmp_path / name).touch()
    (tmp_path / "old").write_text(OLD)
    (tmp_path / "old").chmod(0o700)
    process = subprocess.run(
        ["make", f"PYTHON={python}", ".venv/.installed"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert process.returncode != 0
    assert says in process.stderr
    assert "make setup PYTHON=python3.12" in process.stderr
    assert not (tmp_path / ".venv").exists()
