"""The script that finds or starts a Docker engine, tested without an engine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[3] / "docker" / "engine"
NOWHERE = "unix:///nonexistent/docker.sock"


@pytest.mark.parametrize("verb", ["status", "start"])
def test_a_missing_engine_is_reported_in_one_line(verb: str) -> None:
    """An engine configured by the user is never replaced."""
    process = subprocess.run(
        [ENGINE, verb], env={**os.environ, "DOCKER_HOST": NOWHERE}, capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 1
    assert process.stdout == ""
    assert len(process.stderr.splitlines()) == 1
    assert f"at {NOWHERE}" in process.stderr or "no Docker on this machine" in process.stderr


def test_an_unknown_command_prints_the_usage() -> None:
    process = subprocess.run([ENGINE, "restart"], capture_output=True, text=True, timeout=60)
    assert process.returncode == 1
    assert "usage" in process.stderr
