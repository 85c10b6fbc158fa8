"""The supervisor of the local platform: starts the processes in order, restarts them, and stops them in order."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from clonos.agent.directories import AgentDirectory
from clonos.agent.priority import Priority, set_group_priority
from clonos.agent.process import kill_all
from clonos.agent.warm_pool import kill_pool_driver
from clonos.client import Client
from clonos.client.credentials import Credentials
from clonos.deadline import Deadline
from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import ensure_jars
from clonos.embedded.processes import ProcessRecord, spawn, stop_all
from clonos.embedded.standalone_spark import MasterReport, StandaloneSpark
from clonos.errors import ClonosError, DirectoryInUse, LocalPlatformFailed, PortInUse
from clonos.kafka import await_brokers
from clonos.local import spark_cluster
from clonos.local.access import agent_token, read_token
from clonos.local.plan import Plan, free_port
from clonos.local.state import Folder, State
from clonos.resources.hosts import HostState
from clonos.settings import Settings

Report = Callable[[str], None]

MASTER: Final = "spark-master"
_CONTROL_PLANE: Final = "control-plane"
_POLL_S: Final = 0.1
_WATCH_S: Final = 0.5
_CONTROL_PLANE_S: Final = 5.0
_SPARK_S: Final = 5.0
_AGENT_MARGIN_S: Final = 10.0
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
# A process that ran this long is healthy: the pause before its next restart is short again.
_HEALTHY_S: Final = 30.0
_LINES: Final = 15
# A larger log is rotated at the start of its process.
_LOG_BYTES: Final = 16 << 20


class StopRequested(Exception):
    """A stop was requested before the platform was ready."""


@dataclass
class _Supervised:
    """A process that is restarted when it exits."""

    process: ProcessRecord
    started_at: float
    pause_s: float = _FIRST_PAUSE_S
    not_before: float = 0.0


class Stack:
    """A local platform that this process supervises until `stop` is set; `report` gets one line per step."""

    def __init__(self, plan: Plan, report: Report, stop: threading.Event) -> None:
        self._plan = plan
        self._folder = plan.folder
        self._report = report
        self._stop = stop
        self._settings = Settings(home=plan.home)
        self._kafka = EmbeddedKafka(plan.home / "kafka")
        self._state = State("starting", ProcessRecord(os.getpid(), psutil.Process().create_time()))
        self._watches_kafka = False
        self._port = 0
        self._spark: StandaloneSpark | None = None
        self._supervised: dict[str, _Supervised] = {}

    def run(self, on_ready: Callable[[State], None] = lambda _state: None) -> None:
        """Start the platform, supervise it until `stop` is set, then stop it.

        `on_ready` is called once, when the platform is ready; if it raises, the platform is stopped.

        Raises:
            DirectoryInUse: Another supervisor uses this home.
            LocalPlatformFailed: A process did not start.
            ClonosError: Kafka did not start.
        """
        self._folder.create()
        with _locked(self._folder):
            clean(self._folder, self._plan.home)
            try:
                self._start()
                self._write_state("ready")
                on_ready(self._state)
                self._watch()
            except StopRequested:
                pass
            except ClonosError as error:
                self._state.failure = {"slug": error.slug, "what": error.what, "kept": error.kept, "hint": error.hint}
                raise
            finally:
                self._shut_down()

    def _write_state(self, status: str | None = None) -> None:
        if status is not None:
            self._state.status = status  # type: ignore[assignment]
        self._state.write(self._folder)

    def _start(self) -> None:
        self._write_state("starting")
        self._start_kafka()
        self._start_spark()
        self._port = free_port(self._plan.port)
        self._start_control_plane()
        token = read_token(self._plan.token_file)
        with Client(self._state.api, token) as client:
            if self._spark is not None:
                spark_cluster.register(client, self._spark, self._plan.home)
            if self._plan.hosts:
                self._report("Starting the hosts.")
            for name in self._plan.hosts:
                agent_token(client, name, self._folder.tokens / name)
                self._start_agent(name)
            self._await_hosts(client)
            if self._spark is not None and self._plan.hosts:
                self._check_spark(client)
        Credentials(self._state.api, token).write(self._plan.home)

    def _start_kafka(self) -> None:
        kafka = self._settings.kafka
        if not self._plan.kafka:
            return
        if kafka.bootstrap_servers:
            self._report(f"Using Kafka at {kafka.bootstrap_servers}.")
            await_brokers(kafka, timeout_s=self._plan.timeout_s)
            self._state.kafka = kafka.bootstrap_servers
            return
        self._kafka = EmbeddedKafka(self._plan.home / "kafka", jars=ensure_jars(self._settings))
        self._watches_kafka = True
        if not self._kafka.status().running:
            self._report("Starting Kafka.")
            # Recorded first, so that Kafka is stopped even if this process is killed during the start.
            self._state.kafka_started = True
            self._write_state()
            self._kafka.start()
        self._state.kafka = self._kafka.bootstrap_servers
        self._write_state()
        self._check()

    def _start_spark(self) -> None:
        if not self._plan.spark_workers:
            return
        self._report("Starting the Spark cluster.")
        self._spark = self._plan.spark(ensure_jars(self._settings))
        self._spark.prepare()
        self._launch_spark(MASTER)
        self._await_spark(MASTER, lambda report: report.status == "ALIVE")
        for worker in self._plan.workers:
            self._launch_spark(worker)
        self._await_spark(self._plan.workers[-1], lambda report: report.workers >= self._plan.spark_workers)
        self._state.spark_master, self._state.spark_ui = self._spark.master, self._spark.ui
        self._write_state()

    def _launch_spark(self, part: str) -> None:
        assert self._spark is not None
        is_master = part == MASTER
        command = self._spark.master_command() if is_master else self._spark.worker_command(part)
        self._spawn(part, command, self._spark.environment())

    def _await_spark(self, part: str, ready: Callable[[MasterReport], bool]) -> None:
        assert self._spark is not None
        deadline = Deadline(self._plan.timeout_s)
        while (report := self._spark.report()) is None or not ready(report):
            self._check()
            for name, process in self._state.spark.items():
                if process.find() is None:
                    tail = _last_lines(self._folder.log(name))
                    raise self._failed(name, f"{name} exited during start:\n{tail}")
            if deadline.passed():
                raise self._failed(part, f"The Spark cluster was not ready in {self._plan.timeout_s:g} s.")
            self._stop.wait(_POLL_S)

    def _check_spark(self, client: Client) -> None:
        """Wait for the check of the cluster: its executors would slow the start of the user's first job."""
        self._report("Checking the Spark cluster.")
        try:
            client.operations.wait(client.clusters.check(spark_cluster.NAME), on_poll=lambda _operation: self._check())
        except ClonosError as error:
            self._report(f"The Spark cluster cannot be used: {error.what}")

    def _start_control_plane(self) -> None:
        self._report("Starting the control plane.")
        while True:
            try:
                self._launch_control_plane()
                self._await_control_plane()
            except PortInUse:
                # Another process took the port since the check. Only a port requested by the user is final.
                if self._plan.port is not None:
                    raise
                self._port = free_port(None)
            else:
                return

    def _launch_control_plane(self) -> None:
        self._plan.ready_file.unlink(missing_ok=True)
        self._state.control_plane = self._spawn(
            _CONTROL_PLANE,
            self._plan.control_plane,
            self._plan.control_plane_environment(self._state.kafka, self._port),
        )

    def _await_control_plane(self) -> None:
        process = self._state.control_plane
        assert process is not None
        deadline = Deadline(self._plan.timeout_s)
        while not self._plan.ready_file.exists():
            self._check()
            if process.find() is None:
                tail = _last_lines(self._folder.log(_CONTROL_PLANE))
                if "port-in-use" in tail:
                    raise PortInUse(f"The port {self._port} is in use.", kept="nothing else was started.")
                raise self._failed(_CONTROL_PLANE, f"The control plane exited during start:\n{tail}")
            if deadline.passed():
                raise self._failed(_CONTROL_PLANE, f"The control plane was not ready in {self._plan.timeout_s:g} s.")
            self._stop.wait(_POLL_S)
        self._state.api = json.loads(self._plan.ready_file.read_text())["url"]
        self._write_state()

    def _start_agent(self, name: str) -> None:
        command = self._plan.agent_command(name, self._state.api)
        self._state.agents[name] = self._spawn(name, command, self._plan.environment(self._state.kafka))

    def _await_hosts(self, client: Client) -> None:
        deadline = Deadline(self._plan.timeout_s)
        since = psutil.Process().create_time()
        while True:
            self._check()
            # Heartbeats since this start: an earlier agent with the same name may still count as READY.
            ready = {
                host.name
                for host in client.hosts.list().data
                if host.state is HostState.READY and host.heartbeat_at.timestamp() > since
            }
            missing = sorted(set(self._plan.hosts) - ready)
            if not missing:
                return
            for name in missing:
                if self._state.agents[name].find() is None:
                    tail = _last_lines(self._folder.log(name))
                    raise self._failed(name, f"The agent of {name} exited during start:\n{tail}")
            if deadline.passed():
                raise self._failed(
                    missing[0], f"The agent of {missing[0]} was not ready in {self._plan.timeout_s:g} s."
                )
            self._stop.wait(_POLL_S)

    def _failed(self, part: str, what: str) -> LocalPlatformFailed:
        return LocalPlatformFailed(what, hint=f"read {self._folder.log(part)}; `clonos doctor` checks this machine.")

    def _spawn(self, part: str, command: Sequence[str], environment: dict[str, str]) -> ProcessRecord:
        log = self._folder.log(part)
        if log.exists() and log.stat().st_size > _LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))
        process = spawn(command, output=log, directory=self._folder.path, environment=environment)
        if part == _CONTROL_PLANE:  # an agent does it itself
            set_group_priority(process.pid, Priority.SERVICE)
        before = self._supervised.get(part)
        pause_s = before.pause_s if before is not None else _FIRST_PAUSE_S
        self._supervised[part] = _Supervised(process, time.monotonic(), pause_s)
        if part == _CONTROL_PLANE:
            self._state.control_plane = process
        elif self._is_spark(part):
            self._state.spark[part] = process
        else:
            self._state.agents[part] = process
        self._write_state()
        return process

    def _is_spark(self, part: str) -> bool:
        return part == MASTER or part in self._plan.workers

    def _check(self) -> None:
        if self._stop.is_set():
            raise StopRequested

    def _watch(self) -> None:
        while not self._stop.wait(_WATCH_S):
            for part, supervised in list(self._supervised.items()):
                if supervised.process.find() is None:
                    self._restart(part, supervised)
            if self._watches_kafka and not self._kafka.status().running:
                self._restart_kafka()

    def _restart(self, part: str, supervised: _Supervised) -> None:
        now = time.monotonic()
        if not supervised.not_before:
            if now - supervised.started_at > _HEALTHY_S:
                supervised.pause_s = _FIRST_PAUSE_S
            supervised.not_before = now + supervised.pause_s
            self._report(
                f"{part} exited and is restarted in {supervised.pause_s:g} s. Its log: {self._folder.log(part)}"
            )
            supervised.pause_s = min(supervised.pause_s * 2, _LONGEST_PAUSE_S)
        elif now >= supervised.not_before:
            if part == _CONTROL_PLANE:
                self._launch_control_plane()
            elif self._is_spark(part):
                self._launch_spark(part)
            else:
                self._start_agent(part)

    def _restart_kafka(self) -> None:
        self._report("Kafka exited and is restarted.")
        try:
            self._kafka.start()
        except ClonosError as error:
            self._report(str(error))

    def _shut_down(self) -> None:
        if self._state.failure is None:
            self._report("Stopping.")
        self._write_state("stopping")
        stop_platform(self._state, self._plan.home, grace_s=self._plan.stop_grace_s)
        if self._state.failure is not None:
            self._write_state("failed")  # read by the command that waits for this start
        else:
            State.remove(self._folder)


def stop_platform(state: State, home: Path, *, grace_s: float) -> None:
    """Stop all processes in `state`: agents with their drivers, then Spark, the control plane and Kafka.

    `grace_s` is the time in seconds for drivers to finish their epoch.
    """
    stop_all(list(state.agents.values()), grace_s=grace_s + _AGENT_MARGIN_S)
    stop_drivers(home, list(state.agents))
    stop_all(list(state.spark.values()), grace_s=_SPARK_S)  # workers stop their executors
    if state.control_plane is not None:
        stop_all([state.control_plane], grace_s=_CONTROL_PLANE_S)
    if state.kafka_started:
        EmbeddedKafka(home / "kafka").stop()


def clean(folder: Folder, home: Path) -> None:
    """Stop what a killed supervisor and drivers of this ``CLONOS_HOME`` left behind. The caller holds the lock file."""
    state = State.read(folder)
    if state is not None:
        stop_platform(state, home, grace_s=1.0)
        State.remove(folder)


def down(home: Path, *, timeout_s: float = 120.0) -> bool:
    """Stop the platform of `home`, and return whether one was running; kill its supervisor after `timeout_s`.

    Raises:
        DirectoryInUse: The supervisor does not exit, or another one starts.
    """
    folder = Folder.of(home)
    state = State.read(folder)
    if state is None:
        return False
    stop_all([state.supervisor], grace_s=timeout_s)
    with _locked(folder):
        clean(folder, home)
    return state.status != "failed"


@contextmanager
def _locked(folder: Folder) -> Iterator[None]:
    """Lock the home for one supervisor; the kernel releases the lock when this process exits."""
    with folder.lock.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DirectoryInUse(
                f"Another `clonos up` uses {folder.path.parent}.",
                kept="it keeps running.",
                hint="stop it with `clonos down`, or choose another CLONOS_HOME.",
            ) from error
        yield


def _last_lines(file: Path) -> str:
    return "\n".join(file.read_text(errors="replace").splitlines()[-_LINES:]) if file.exists() else ""


def stop_drivers(home: Path, agents: Sequence[str]) -> int:
    """Stop the remaining drivers (pool drivers too) of the agents with these names; returns how many processes."""
    stopped = 0
    for name in agents:
        folder = home.absolute() / "agent" / name
        if not folder.is_dir():
            continue
        place = AgentDirectory(folder)
        for run in place.runs():
            record = place.run(run).record()
            if record.open:
                stopped += kill_all(run, record.pid, record.identity)
        if place.pool_drivers.is_dir():
            names = [path.name for path in place.pool_drivers.iterdir()]
            stopped += sum(kill_pool_driver(place.pool_drivers, name) for name in names)
    return stopped
