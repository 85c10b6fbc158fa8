"""A pool driver becomes the driver of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clonos.standby import pool_driver
from clonos.standby.launch_request import LOG, LaunchRequest
from clonos.standby.pool_driver import PoolDriver
from clonos.testing.harness import eventually


@pytest.mark.parametrize("main", ["job.py", "src/job.py"])
def test_a_pool_driver_adopts_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: str) -> None:
    run, pool = tmp_path / "run", tmp_path / "pool"
    directory = (run / "code" / main).parent
    directory.mkdir(parents=True)
    (directory / "job.py").touch()
    (directory / "helper.py").write_text("ANSWER = 42\n")
    (run / "events.jsonl").touch()
    os.utime(run / "events.jsonl", (0, 0))
    (run / "job.yaml").write_text(
        f"apiVersion: clonos/v1\nkind: Job\nmetadata: {{name: words}}\nspec: {{main: code/{main}}}\n"
    )
    (pool / "modules").mkdir(parents=True)
    (pool / LOG).touch()
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    monkeypatch.setattr(pool_driver, "_copy_log", lambda *_: None)
    monkeypatch.chdir(tmp_path)  # restored afterwards
    events = run / "events.jsonl"
    request = LaunchRequest(
        arguments=("run",),
        environment={},
        directory=run,
        spec=run / "job.yaml",
        log=run / "driver.log",
        events=events,
    )
    PoolDriver(pool, os.getppid()).adopt_run(request)
    assert (pool / "modules" / "helper.py").read_text() == "ANSWER = 42\n"
    eventually(lambda: events.stat().st_mtime > 0, "the agent sees that it works, although it imports the job first")
    events.write_text("{}\n")
