"""A control plane on this machine for tests: ``clonos up``, one job on it, and the processes of its drivers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

import psutil
from pydantic import BaseModel

from clonos.client import Client
from clonos.client.credentials import Credentials
from clonos.embedded.layout import free_ports
from clonos.errors import ClonosError
from clonos.resources.hosts import Standby
from clonos.resources.jobs import Job, JobState, Recovery, Run
from clonos.settings import KafkaSettings
from clonos.standby.states import FINAL_STATES, StandbyState
from clonos.testing.harness.processes import (
    Killed,
    ProcessGroup,
    clean_environment,
    executors_of,
    kill_together,
    processes_of_home,
)
from clonos.testing.harness.waiting import T, eventually

TIMEOUT_S: Final = 180.0
_COMMAND_TIMEOUT_S: Final = 600.0
_STALE_PID_S: Final = 5.0
_POLL_S: Final = 0.05
_PORT: Final = "--port"
_ACTIVE: Final = frozenset({"STARTING", "RUNNING", "STOPPING"})


class Stack:
    """A platform on this machine: the processes that ``clonos up`` starts, with a home directory of their own.

    As a context manager it starts on entry and runs ``clonos down`` on exit.

    Args:
        home: ``CLONOS_HOME`` of all commands and processes.
        options: Options of ``clonos up``.

    Attributes:
        kafka: Settings with the address of the platform's Kafka; `up` sets it.
    """

    def __init__(self, home: Path, *options: str) -> None:
        self.home = home
        self.kafka = KafkaSettings()
        self._options = options
        self._client: Client | None = None

    def up(self, *options: str) -> dict[str, Any]:
        """Run ``clonos up --detach``, on a random free port unless ``--port`` is given; returns the JSON that it
        prints.

        From its usual first port on, another platform could take the port of a control plane that was killed.
        """
        options = (*self._options, *options)
        if _PORT not in options:
            options = (*options, _PORT, str(free_ports(1)[0]))
        report: dict[str, Any] = self.json("up", "--detach", *options)
        self.kafka = KafkaSettings(bootstrap_servers=report["kafka"])
        credentials = Credentials.read(self.home)
        self._close()
        self._client = Client(report["api"], credentials.token if credentials is not None else None)
        return report

    def down(self) -> None:
        """Run ``clonos down``."""
        self._close()
        self.cli("down")

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a ``clonos`` command to its end; any exit code is accepted."""
        environment = {**clean_environment(), "CLONOS_HOME": str(self.home)}
        command = [sys.executable, "-m", "clonos", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S)

    def cli(self, *arguments: str) -> str:
        """Run a ``clonos`` command, such as ``"submit", "job.py"``, and return its stdout.

        Raises:
            RuntimeError: The command failed; the error holds its output.
        """
        done = self.run(*arguments)
        if done.returncode:
            raise RuntimeError(f"clonos {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """Run a ``clonos`` command with ``-o json`` and return its decoded output."""
        return json.loads(self.cli(*arguments, "-o", "json"))

    @property
    def client(self) -> Client:
        """A client with the admin's token; `down` closes it."""
        if self._client is None:
            raise ClonosError(f"No platform was started in {self.home}.")
        return self._client

    def state(self) -> dict[str, Any]:
        """Return the platform's state file (`clonos.local.state.State`): status, addresses and processes."""
        state: dict[str, Any] = json.loads((self.home / "local" / "state.json").read_text())
        return state

    def processes(self) -> list[str]:
        """Return the first four words of the command line of each live process of this platform."""
        commands = []
        for process, _run in processes_of_home(self.home):
            with suppress(psutil.NoSuchProcess):  # it has exited since
                commands.append(" ".join(process.cmdline()[:4]))
        return commands

    def __enter__(self) -> Self:
        """Start it."""
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        """Stop it."""
        self.down()


def has_rehearsed(home: Path, standby: Standby, *, with_state: bool = False) -> bool:
    """Whether the newest process of a standby has ended its rehearsals. It makes three quarters of them after READY.

    With `with_state` it must also have read a snapshot of the job's state.
    """
    events_file = home / "agent" / standby.host / "runs" / standby.id / "events.jsonl"
    rehearsed = False
    with suppress(FileNotFoundError):
        for line in events_file.read_text().splitlines():
            if line.endswith("}") and ('"rehearsed"' in line or '"WARMING"' in line):  # the last line may be incomplete
                event = json.loads(line)
                if event["event"] == "rehearsed":
                    rehearsed |= not with_state or "snapshot" in event["state"].values()
                elif event.get("state") == "WARMING":
                    rehearsed = False  # another process of the same run
    return rehearsed


class PlatformJob:
    """A job on a control plane: its state over REST, and its processes on this machine."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name

    def get(self) -> Job:
        """Request the job: its specification, state and failure."""
        return self.client.jobs.get(self.name)

    def runs(self) -> list[Run]:
        """Return the job's runs, newest first."""
        return self.client.jobs.runs(self.name).data

    def recoveries(self) -> list[Recovery]:
        """Return the job's recoveries, newest first."""
        return self.client.jobs.recoveries(self.name).data

    def standbys(self) -> list[Standby]:
        """Return the job's standbys, without those that were promoted or have failed."""
        return self.client.jobs.standbys(self.name, states=set(StandbyState) - FINAL_STATES).data

    def until(
        self, check: Callable[[], T | None], description: str, timeout_s: float = TIMEOUT_S, *, poll_s: float = _POLL_S
    ) -> T:
        """Call `check` each `poll_s` seconds until it returns a true value, and return the value.

        A timeout error describes the job, its runs, standbys and recoveries.
        """
        return eventually(check, description, timeout_s=timeout_s, poll_s=poll_s, details=self.describe)

    def driver_run(self) -> Run | None:
        """Return the run of the job's driver; None without one. The job's newest run may be a standby's."""
        run = self.get().run
        return self.client.jobs.run(self.name, run) if run is not None else None

    def driver(self) -> ProcessGroup | None:
        """Return the live process of the job's driver; None if there is none."""
        run = self.driver_run()
        return _process(run) if run is not None and run.state in _ACTIVE else None

    def process(self, run: str) -> ProcessGroup | None:
        """Return the live process of the run with this id; None if there is none."""
        return _process(self.client.jobs.run(self.name, run))

    def await_process(self, run: str) -> ProcessGroup:
        """Wait until the run with this id has a live process, and return the process."""
        return self.until(lambda: self.process(run), f"run {run} has a process")

    def await_driver(self) -> ProcessGroup:
        """Wait until the job is RUNNING and its driver's process is live, and return the process."""

        def running_driver() -> ProcessGroup | None:
            return self.driver() if self.get().state == JobState.RUNNING else None

        return self.until(running_driver, "a driver runs")

    def await_generation(self, generation: int, *hosts: str) -> str:
        """Wait until the job is RUNNING as `generation`, on one of `hosts` (default: any); returns the host."""

        def host() -> str | None:
            job = self.get()
            running = job.state == JobState.RUNNING and job.generation == generation
            return job.host if running and (not hosts or job.host in hosts) else None

        return self.until(host, f"generation {generation} runs{' on ' + ' or '.join(hosts) if hosts else ''}")

    def ready_standby(self, host: str | None = None) -> Standby | None:
        """Return a standby of the job that is READY, on `host` if one is named; None if there is none.

        Its id is also the id of its run.
        """
        ready = (standby for standby in self.standbys() if standby.state == StandbyState.READY)
        return next((standby for standby in ready if host in (None, standby.host)), None)

    def await_standby(self, host: str | None = None) -> Standby:
        """Wait until a standby of the job is READY, on `host` if one is named, and return it."""
        return self.until(lambda: self.ready_standby(host), f"a standby is READY{' on ' + host if host else ''}")

    def kill_driver(self) -> Killed:
        """Kill the driver and its child processes with SIGKILL; returns how many there were, and when."""

        def current() -> tuple[ProcessGroup | None] | None:
            run = self.driver_run()
            if run is None or run.pid is None or run.state not in _ACTIVE:
                return (None,)
            # Shortly after a kill the control plane may still report the process that was killed.
            process = _process(run)
            return (process,) if process is not None else None

        try:
            (driver,) = eventually(current, "the driver's process is reported", timeout_s=_STALE_PID_S, poll_s=_POLL_S)
        except TimeoutError:
            driver = None
        return driver.kill() if driver is not None else Killed.nothing()

    def executors(self) -> list[psutil.Process]:
        """Return the live executors of the driver's Spark application on this machine; empty with a local master."""
        run = self.driver_run()
        return executors_of(run.application_id) if run is not None and run.application_id else []

    def kill_executor(self) -> Killed:
        """Kill one executor of the job, with its Python workers; returns how many processes, and when."""
        executor = self.until(lambda: next(iter(self.executors()), None), "an executor runs")
        return kill_together(also=[executor, *executor.children(recursive=True)])

    def describe(self) -> str:
        """Return the job, its newest runs, standbys and recoveries as JSON, for error messages."""
        try:
            parts: dict[str, Sequence[BaseModel]] = {
                "job": [self.get()],
                "runs": self.runs()[:6],
                "standbys": self.client.jobs.standbys(self.name).data[:6],
                "recoveries": self.recoveries()[:3],
            }
        except ClonosError as error:
            return f"the control plane does not answer: {error}"
        return json.dumps(
            {name: [row.model_dump(mode="json") for row in rows] for name, rows in parts.items()}, indent=1
        )


def _process(run: Run) -> ProcessGroup | None:
    if run.pid is None or run.ended_at is not None:
        return None
    process = ProcessGroup(run.pid)
    return process if process.running else None
