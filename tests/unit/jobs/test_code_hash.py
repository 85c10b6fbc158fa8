"""The code hash covers the job file and the imported modules in its folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clonos.jobs.loading import load_job

JOB = """
import clonos
import {helper}


@clonos.job(name="hashed")
def hashed(ctx):
    pass
"""


def test_changed_module_changes_the_code_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = "helper_of_hashed_job"
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "job.py").write_text(JOB.format(helper=helper))
    (tmp_path / "unrelated.py").write_text("a = 1\n")
    hashes = []
    for text in ("a = 1\n", "a = 1\n", "a = 2\n"):
        (tmp_path / f"{helper}.py").write_text(text)
        sys.modules.pop(helper, None)
        hashes.append(load_job(tmp_path / "job.py").code)
    assert hashes[0] == hashes[1]
    assert hashes[1] != hashes[2]
