"""The supervisor of the local stack: starts its parts in order, starts again what ends, ends all in order."""

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

from clonos.client import Client
from clonos.client.credentials import Credentials
from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import ensure_jars
from clonos.embedded.processes import Recorded, end, spawn
from clonos.errors import ClonosError, DirectoryTaken, LocalStackFailed, PortTaken
from clonos.kafka import await_brokers
from clonos.local.access import agent_token, read_token
from clonos.local.drivers import end_drivers
from clonos.local.plan import Plan, free_port
from clonos.local.state import Folder, State
from clonos.resources.hosts import HostState
from clonos.settings import Settings

Say = Callable[[str], None]

_LOOK_S: Final = 0.1
_WATCH_S: Final = 0.5
_CONTROL_PLANE_S: Final = 5.0
_AGENT_MARGIN_S: Final = 10.0
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
# A part that ran for so long did not fail at its start.
_HEALTHY_S: Final = 30.0
_LINES: Final = 15
# A log that is larger at the start of its part is put aside, in place of the one before.
_LOG_BYTES: Final = 16 << 20


class Ended(Exception):
    """Somebody asked for the end before everything was up."""


@dataclass
class _Watched:
    """A part that is started again when it ends."""

    process: Recorded
    begun: float
    pause_s: float = _FIRST_PAUSE_S
    not_before: float = 0.0


class Stack:
    """One stack, in this process.

    Args:
        plan: What to start.
        say: Told of each step, one line each.
        stop: Set to end it.
    """

    def __init__(self, plan: Plan, say: Say, stop: threading.Event) -> None:
        self._plan = plan
        self._folder = plan.folder
        self._say = say
        self._stop = stop
        self._settings = Settings(home=plan.home)
        self._kafka = EmbeddedKafka(plan.home / "kafka")
        self._state = State("starting", _this_process())
        self._port = 0
        self._watched: dict[str, _Watched] = {}

    def run(self, on_ready: Callable[[State], None] = lambda _state: None) -> None:
        """Start everything, look after it until `stop` is set, end everything.

        Raises:
            DirectoryTaken: Another supervisor has this home.
            LocalStackFailed: A part did not start.
            ClonosError: Kafka did not start.
        """
        self._folder.make()
        with _held(self._folder):
            clean(self._folder, self._plan.home)
            try:
                self._start()
                self._told("ready")
                on_ready(self._state)
                self._watch()
            except Ended:
                pass
            except ClonosError as error:
                self._state.failure = {"slug": error.slug, "what": error.what, "kept": error.kept, "hint": error.hint}
                raise
            finally:
                self._end()

    def _told(self, status: str | None = None) -> None:
        if status is not None:
            self._state.status = status  # type: ignore[assignment]
        self._state.write(self._folder)

    def _start(self) -> None:
        self._told("starting")
        self._start_kafka()
        self._port = free_port(self._plan.port)
        self._start_control_plane()
        token = read_token(self._plan.token_file)
        with Client(self._state.api, token) as client:
            if self._plan.hosts:
                self._say("Starting the hosts.")
            for name in self._plan.hosts:
                agent_token(client, name, self._folder.tokens / name)
                self._start_agent(name)
            self._await_hosts(client)
        Credentials(self._state.api, token).write(self._plan.home)

    def _start_kafka(self) -> None:
        kafka = self._settings.kafka
        if not self._plan.kafka:
            return
        if kafka.bootstrap_servers:
            self._say(f"Using Kafka at {kafka.bootstrap_servers}.")
            await_brokers(kafka, timeout_s=self._plan.timeout_s)
            self._state.kafka = kafka.bootstrap_servers
            return
        if not self._kafka.status().running:
            self._say("Starting Kafka.")
            self._kafka = EmbeddedKafka(self._plan.home / "kafka", jars=ensure_jars(self._settings))
            # Before, so that it is ended even if we are killed meanwhile.
            self._state.kafka_started = True
            self._told()
            self._kafka.start()
        self._state.kafka = self._kafka.bootstrap_servers
        self._told()
        self._check()

    def _start_control_plane(self) -> None:
        self._say("Starting the control plane.")
        while True:
            try:
                self._launch_control_plane()
                self._await_control_plane()
            except PortTaken:
                # Taken since we looked; only the user's own choice of a port is final.
                if self._plan.port is not None:
                    raise
                self._port = free_port(None)
            else:
                return

    def _launch_control_plane(self) -> None:
        self._plan.ready_file.unlink(missing_ok=True)
        self._state.control_plane = self._spawn(
            "control-plane",
            self._plan.control_plane,
            self._plan.control_plane_environment(self._state.kafka, self._port),
        )

    def _await_control_plane(self) -> None:
        process = self._state.control_plane
        assert process is not None
        deadline = time.monotonic() + self._plan.timeout_s
        while not self._plan.ready_file.exists():
            self._check()
            if process.find() is None:
                told = _last_lines(self._folder.log("control-plane"))
                if "port-taken" in told:
                    raise PortTaken(f"The port {self._port} is in use.", kept="nothing else was started.")
                raise self._failed("control-plane", f"The control plane ended while it started:\n{told}")
            if time.monotonic() > deadline:
                raise self._failed("control-plane", f"The control plane did not answer in {self._plan.timeout_s:g} s.")
            self._stop.wait(_LOOK_S)
        self._state.api = json.loads(self._plan.ready_file.read_text())["url"]
        self._told()

    def _start_agent(self, name: str) -> None:
        command = self._plan.agent_command(name, self._state.api)
        self._state.agents[name] = self._spawn(name, command, self._plan.environment(self._state.kafka))

    def _await_hosts(self, client: Client) -> None:
        deadline = time.monotonic() + self._plan.timeout_s
        wanted = set(self._plan.hosts)
        since = psutil.Process().create_time()
        while True:
            self._check()
            # Heard of since we began: another time's agent of the name may still count as there.
            there = {
                host.name
                for host in client.hosts.list().data
                if host.state is HostState.READY and host.heartbeat_at.timestamp() > since
            }
            missing = sorted(wanted - there)
            if not missing:
                return
            for name in missing:
                if self._state.agents[name].find() is None:
                    told = _last_lines(self._folder.log(name))
                    raise self._failed(name, f"The agent of {name} ended while it started:\n{told}")
            if time.monotonic() > deadline:
                raise self._failed(
                    missing[0], f"The agent of {missing[0]} did not answer in {self._plan.timeout_s:g} s."
                )
            self._stop.wait(_LOOK_S)

    def _failed(self, part: str, what: str) -> LocalStackFailed:
        return LocalStackFailed(what, hint=f"see {self._folder.log(part)}; `clonos doctor` looks for what is missing.")

    def _spawn(self, part: str, command: Sequence[str], environment: dict[str, str]) -> Recorded:
        log = self._folder.log(part)
        if log.exists() and log.stat().st_size > _LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))
        process = spawn(command, output=log, directory=self._folder.path, environment=environment)
        before = self._watched.get(part)
        pause_s = before.pause_s if before is not None else _FIRST_PAUSE_S
        self._watched[part] = _Watched(process, time.monotonic(), pause_s)
        if part == "control-plane":
            self._state.control_plane = process
        else:
            self._state.agents[part] = process
        self._told()
        return process

    def _check(self) -> None:
        if self._stop.is_set():
            raise Ended

    def _watch(self) -> None:
        while not self._stop.wait(_WATCH_S):
            for part, watched in list(self._watched.items()):
                if watched.process.find() is None:
                    self._again(part, watched)
            if self._state.kafka_started and not self._kafka.status().running:
                self._start_kafka_again()

    def _again(self, part: str, watched: _Watched) -> None:
        now = time.monotonic()
        if not watched.not_before:
            if now - watched.begun > _HEALTHY_S:
                watched.pause_s = _FIRST_PAUSE_S
            watched.not_before = now + watched.pause_s
            self._say(
                f"{part} has ended; it is started again in {watched.pause_s:g} s. Its log: {self._folder.log(part)}"
            )
            watched.pause_s = min(watched.pause_s * 2, _LONGEST_PAUSE_S)
        elif now >= watched.not_before:
            if part == "control-plane":
                self._launch_control_plane()
            else:
                self._start_agent(part)

    def _start_kafka_again(self) -> None:
        self._say("Kafka has ended; it is started again.")
        try:
            self._kafka.start()
        except ClonosError as error:
            self._say(str(error))

    def _end(self) -> None:
        if self._state.failure is None:
            self._say("Ending.")
        self._told("ending")
        end_all(self._state, self._plan.home, grace_s=self._plan.stop_grace_s)
        if self._state.failure is not None:
            self._told("failed")  # for whoever waits for it
        else:
            State.remove(self._folder)


def end_all(state: State, home: Path, *, grace_s: float) -> None:
    """End what a stack has started: agents with their drivers, then the control plane, then Kafka."""
    end(list(state.agents.values()), grace_s=grace_s + _AGENT_MARGIN_S)
    end_drivers(home, list(state.agents))
    if state.control_plane is not None:
        end([state.control_plane], grace_s=_CONTROL_PLANE_S)
    if state.kafka_started:
        EmbeddedKafka(home / "kafka").stop()


def clean(folder: Folder, home: Path) -> None:
    """End what a supervisor that was killed left behind. The caller holds the lock."""
    state = State.read(folder)
    if state is not None:
        end_all(state, home, grace_s=1.0)
        State.remove(folder)


def down(home: Path, *, timeout_s: float = 120.0) -> bool:
    """End the stack of `home`, and nothing else; whether there was one.

    Raises:
        DirectoryTaken: It does not end, or another one is just being started.
    """
    folder = Folder.of(home)
    state = State.read(folder)
    if state is None:
        return False
    end([state.supervisor], grace_s=timeout_s)
    with _held(folder):
        clean(folder, home)
    return state.status != "failed"


@contextmanager
def _held(folder: Folder) -> Iterator[None]:
    """Be the only supervisor; the kernel lets go if this process dies."""
    with folder.lock.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DirectoryTaken(
                f"Another `clonos up` has {folder.path.parent}.",
                kept="it was left alone.",
                hint="end it with `clonos down`, or choose another CLONOS_HOME.",
            ) from error
        yield


def _this_process() -> Recorded:
    return Recorded(os.getpid(), psutil.Process().create_time())


def _last_lines(file: Path) -> str:
    return "\n".join(file.read_text(errors="replace").splitlines()[-_LINES:]) if file.exists() else ""
