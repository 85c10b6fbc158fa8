"""A pool driver warms up, and becomes the driver of a run."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.errors import EnvironmentFault
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


class SlowQuery:
    """A query whose epoch ends at the third poll."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.polls = 0

    @property
    def isActive(self) -> bool:  # noqa: N802 -- the name of PySpark's property
        self.polls += 1
        if self.polls == 3:
            self.done.set()
        return True


def test_a_warm_up_waits_for_its_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is busy with drivers it takes minutes."""
    monkeypatch.setattr(pool_driver, "_POLL_S", 0.01)
    query: Any = SlowQuery()
    pool_driver._await_epoch(query, query.done, os.getppid())
    assert query.polls == 3


def test_a_warm_up_fails_with_its_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_driver, "_POLL_S", 0.01)
    query: Any = SimpleNamespace(isActive=False, exception=lambda: "out of memory")
    with pytest.raises(EnvironmentFault, match="out of memory"):
        pool_driver._await_epoch(query, threading.Event(), os.getppid())


def test_a_warm_up_ends_with_its_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_driver, "_POLL_S", 0.01)
    query: Any = SimpleNamespace(isActive=True)
    with pytest.raises(EnvironmentFault, match="agent exited"):
        pool_driver._await_epoch(query, threading.Event(), agent=os.getpid())
