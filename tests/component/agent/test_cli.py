"""`clonos agent` itself, and `clonos run` as its driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clonos.cli.app import app
from clonos.errors import SpecError
from component.agent.api import FakeApi
from component.agent.hosts import run_spec
from component.agent.test_supervising import reported


@pytest.mark.parametrize("wrong", [["--name", "a b"], ["--slots", "0"], ["--label", "x"], ["--uid", "0"]])
def test_invalid_options_are_rejected(wrong: list[str]) -> None:
    result = CliRunner().invoke(app, ["agent", "--api", "http://127.0.0.1:1", *wrong])
    assert isinstance(result.exception, SpecError)


def test_clonos_agent_runs_clonos_run(api: FakeApi, run: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    api.assign(run_spec(run, api.upload(b"x = 1  # no job")))
    command = [sys.executable, "-m", "clonos", "agent", "--api", api.url, "--name", "host-9", "--slots", "3"]
    command += ["--failure-domain", "rack", "--token-file", str(token), "--label", "disk=ssd"]
    process = subprocess.Popen(command, env={**os.environ, "CLONOS_HOME": str(tmp_path)}, stderr=subprocess.DEVNULL)
    try:
        report = reported(api, run, "EXITED", final=True)
        assert (report.exit_code, report.attempts) == (12, 1)
        assert report.failure is not None
        assert report.failure.error == "job-file-invalid"
        registered = api.registered[0]
        assert (registered.name, registered.slots, registered.failure_domain) == ("host-9", 3, "rack")
        assert registered.labels == {"disk": "ssd"}
        assert {"clonos", "python", "spark", "java"} <= registered.versions.keys()
        assert api.tokens == {"Bearer secret"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
