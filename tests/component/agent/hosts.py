"""Agents of a test, in threads or as processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil

from clonos.agent import Agent, AgentSettings
from clonos.jobs.spec import JobSpec
from clonos.resources.hosts import RunRestartPolicy, RunSpec

HERE = Path(__file__).parent
DRIVER = (sys.executable, str(HERE / "fake_driver.py"), "{spec}", "{events}")
QUICK = RunRestartPolicy(attempts=3, initial_backoff_ms=20, max_backoff_ms=200)


def settings(home: Path, url: str, **more: Any) -> AgentSettings:
    commands = {"command": DRIVER, "ending_command": ()}
    return AgentSettings(**{"api": url, "name": "host-1", "home": home, "cache": home / "cache", **commands} | more)


def run_spec(run: str, artifact: str, desired: str = "RUNNING", **more: Any) -> RunSpec:
    spec = JobSpec.model_validate({"metadata": {"name": "fake"}, "spec": {"params": {"a": "b"}}})
    return RunSpec.model_validate(
        {"run": run, "job": "j1", "name": "fake", "version": 1, "spec": spec, "artifact": artifact, "desired": desired}
        | {"restart": QUICK, **more}
    )


class ThreadAgent:
    """An agent in a thread of the test's process, which is the parent of its drivers."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self.error: BaseException | None = None
        self._thread.start()

    def _run(self) -> None:
        async def live() -> None:
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.current_task()
            await Agent(self._settings).run()

        try:
            asyncio.run(live())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        if self._thread.is_alive() and self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert self.error is None, repr(self.error)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()


class ProcessAgent:
    """An agent in its own process, as in production."""

    def __init__(self, settings: AgentSettings, log: Path, **environment: str) -> None:
        command = [sys.executable, str(HERE / "run_agent.py"), settings.model_dump_json()]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **environment}
            )

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def processes_of(run: str, *, prefix: bool = False) -> list[int]:
    """Ids of all processes that have the run in their environment; `prefix`: or a run whose id begins with `run`."""
    pids = []
    for process in psutil.process_iter():
        try:
            name = process.environ().get("CLONOS_RUN", "")
            matches = name.startswith(run) if prefix else name == run
            if matches and process.status() != psutil.STATUS_ZOMBIE:
                pids.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return pids
