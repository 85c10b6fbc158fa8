"""The script that finds or starts a Docker engine, as far as it can be asked without one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[2] / "docker" / "engine"
NOWHERE = "unix:///nonexistent/docker.sock"


@pytest.mark.parametrize("verb", ["status", "start"])
def test_says_in_one_line_why_there_is_none(verb: str) -> None:
    """An engine that the user has named is never replaced by one of ours."""
    answer = subprocess.run(
        [ENGINE, verb], env={**os.environ, "DOCKER_HOST": NOWHERE}, capture_output=True, text=True, timeout=60
    )
    assert answer.returncode == 1
    assert answer.stdout == ""
    assert len(answer.stderr.splitlines()) == 1
    assert f"at {NOWHERE}" in answer.stderr or "no Docker on this machine" in answer.stderr


def test_refuses_what_it_does_not_know() -> None:
    answer = subprocess.run([ENGINE, "restart"], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 1
    assert "usage" in answer.stderr
