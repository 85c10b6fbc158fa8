"""The supervisor of `clonos up` with stub processes: real processes and signals, no Kafka."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from clonos.agent.directories import AgentDirectory, RunRecord
from clonos.agent.process import identity
from clonos.client import Client
from clonos.client.credentials import Credentials
from clonos.embedded.jars import ensure_jars
from clonos.embedded.layout import free_ports
from clonos.embedded.processes import ProcessRecord
from clonos.errors import DirectoryInUse, LocalPlatformFailed, PortInUse
from clonos.local import background
from clonos.local.access import read_token
from clonos.local.plan import FIRST_PORT, Plan, free_port
from clonos.local.stack import Stack, down, stop_drivers
from clonos.local.state import Folder, State
from clonos.settings import Settings
from clonos.testing.harness import eventually
from support.busy import slowdown

STUBS = Path(__file__).parent / "stubs"
CONTROL_PLANE = (sys.executable, str(STUBS / "control_plane.py"))


@pytest.fixture
def plan(home: Path) -> Iterator[Plan]:
    (port,) = free_ports(1)
    yield Plan(
        home=home,
        port=port,
        kafka=False,
        control_plane=CONTROL_PLANE,
        agent=(sys.executable, str(STUBS / "agent.py")),
        timeout_s=300,
    )
    down(home)


def parts(state: State) -> list[ProcessRecord]:
    assert state.control_plane is not None
    return [state.control_plane, *state.agents.values()]


def running(state: State) -> list[ProcessRecord]:
    return [process for process in [state.supervisor, *parts(state)] if process.find() is not None]


def read(plan: Plan) -> State:
    state = State.read(plan.folder)
    assert state is not None
    return state


def silent(_line: str) -> None:
    pass


def test_start_runs_in_the_background_until_down(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLONOS_TOKEN", "of-the-user")
    lines: list[str] = []
    state = background.start(plan, lines.append)
    assert lines[0] == "Starting the control plane."
    assert state.ready
    assert state.api == f"http://127.0.0.1:{plan.port}"
    assert list(state.agents) == ["host-1", "host-2"]
    assert len(running(state)) == 4
    assert {os.getsid(process.pid) for process in parts(state)}.isdisjoint({os.getsid(0)})
    credentials = Credentials.read(plan.home)
    assert credentials is not None
    assert credentials.api == state.api
    environment = json.loads((plan.home / "environment.json").read_text())
    assert "CLONOS_TOKEN" not in environment
    assert environment["CLONOS_API__SHARED_CHECKPOINTS"] == str(plan.home)
    assert down(plan.home)
    assert running(state) == []
    assert State.read(plan.folder) is None
    assert not down(plan.home)


def test_all_files_are_below_home_and_private(plan: Plan) -> None:
    background.start(plan, silent)
    down(plan.home)
    folders = {file.name for file in plan.home.iterdir()}
    assert folders == {"local", "credentials.json", "admin.token", "environment.json"}
    private = [plan.home / "credentials.json", *plan.folder.tokens.iterdir()]
    assert all(file.stat().st_mode & 0o077 == 0 for file in private)


def test_the_supervisor_restarts_killed_processes(plan: Plan) -> None:
    state = background.start(plan, silent)
    victims = [state.agents["host-1"], state.control_plane]
    for victim in victims:
        assert victim is not None
        os.kill(victim.pid, signal.SIGKILL)
    restarted = eventually(
        lambda: (now := read(plan)).control_plane != victims[1] and now.agents["host-1"] != victims[0] and now,
        "both run again",
    )
    assert restarted.agents["host-2"] == state.agents["host-2"]
    eventually(lambda: len(running(read(plan))) == 4, "all run")
    log = plan.folder.log("supervisor").read_text()
    assert "host-1 exited and is restarted" in log


def test_start_and_down_clean_up_after_a_killed_supervisor(plan: Plan) -> None:
    before = background.start(plan, silent)
    os.kill(before.supervisor.pid, signal.SIGKILL)
    eventually(lambda: before.supervisor.find() is None, "the supervisor exited")
    assert not read(plan).ready
    assert len(running(before)) == 3, "its processes still run"
    state = background.start(plan, silent)
    assert running(before) == []
    assert len(running(state)) == 4
    os.kill(state.supervisor.pid, signal.SIGKILL)
    assert down(plan.home)
    assert running(state) == []


def test_a_second_supervisor_is_rejected(plan: Plan) -> None:
    state = background.start(plan, silent)
    with pytest.raises(DirectoryInUse, match="Another `clonos up`"):
        Stack(plan, silent, threading.Event()).run()
    assert len(running(state)) == 4, "the first still runs"


def test_a_control_plane_that_exits_during_start_fails_the_start(plan: Plan) -> None:
    broken = plan.model_copy(update={"control_plane": (*CONTROL_PLANE, "broken")})
    with pytest.raises(LocalPlatformFailed, match="there is no database") as caught:
        background.start(broken, silent)
    assert "control-plane.log" in caught.value.hint
    assert State.read(plan.folder) is None
    assert not down(plan.home)


def test_an_agent_that_is_not_ready_in_time_fails_the_start(plan: Plan) -> None:
    hanging = plan.model_copy(update={"timeout_s": round(10.0 * slowdown()), "agents": 1})
    hanging = hanging.model_copy(update={"agent": (sys.executable, "-c", "import time; time.sleep(600)")})
    processes: list[ProcessRecord] = []

    def note(_line: str) -> None:
        state = State.read(plan.folder)
        processes.extend(parts(state) if state is not None and state.control_plane is not None else [])

    with pytest.raises(LocalPlatformFailed, match="host-1 was not ready in "):
        background.start(hanging, note)
    assert processes
    assert [process for process in processes if process.find() is not None] == []


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(number, marks=pytest.mark.turn) for number in (signal.SIGINT, signal.SIGHUP))],
)
def test_a_signal_stops_the_platform(plan: Plan, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "clonos.local", plan.model_dump_json()], stdout=subprocess.DEVNULL
    )
    state = eventually(
        lambda: (current := State.read(plan.folder)) is not None and current.status == "ready" and current,
        "the platform is ready",
    )
    process.send_signal(number)
    assert process.wait(60) == 0
    assert running(state) == []
    assert State.read(plan.folder) is None


def test_a_signal_during_start_stops_the_platform(plan: Plan) -> None:
    hanging = plan.model_copy(update={"agent": (sys.executable, "-c", "import time; time.sleep(600)")})
    process = subprocess.Popen(
        [sys.executable, "-m", "clonos.local", hanging.model_dump_json()], stdout=subprocess.DEVNULL
    )
    state = eventually(
        lambda: (current := State.read(plan.folder)) is not None and len(current.agents) == 2 and current,
        "the agents start",
    )
    process.terminate()
    assert process.wait(60) == 0
    assert running(state) == []


def test_stop_drivers_stops_the_drivers_of_a_killed_agent(home: Path) -> None:
    """The agent's records and the environment of the processes identify them."""
    child = "import subprocess, sys; subprocess.run(['sleep', '600'])"
    run = "0a1b"
    driver = subprocess.Popen(
        [sys.executable, "-c", child], start_new_session=True, env={**os.environ, "CLONOS_RUN": run}
    )
    children = eventually(lambda: psutil.Process(driver.pid).children(), "the driver has a child")
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    place = AgentDirectory(home / "agent" / "host-1").run(run)
    place.create("")
    place.write_record(RunRecord(attempt=1, pid=driver.pid, identity=identity(driver.pid) or ""))
    try:
        assert stop_drivers(home, ["host-1", "host-2"]) == 2
        assert driver.wait(60) == -signal.SIGKILL
        assert not children[0].is_running() or children[0].status() == psutil.STATUS_ZOMBIE
        assert bystander.poll() is None
        assert stop_drivers(home, ["host-1"]) == 0
    finally:
        bystander.kill()
        bystander.wait()


def test_free_port_skips_used_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=str(port)):
            free_port(port)
        monkeypatch.setattr("clonos.local.plan.FIRST_PORT", port)
        assert free_port(None) != port
    assert FIRST_PORT == 8484


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"status": "ready"}'])
def test_an_invalid_state_file_is_ignored(home: Path, text: str) -> None:
    folder = Folder.of(home)
    folder.create()
    (folder.path / "state.json").write_text(text)
    assert State.read(folder) is None


def test_a_reused_process_id_is_never_stopped(plan: Plan) -> None:
    """The state of an earlier boot: its process ids belong to other processes."""
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        plan.folder.create()
        old = ProcessRecord(bystander.pid, 1.0)
        State("ready", old, control_plane=old, agents={"host-1": old}).write(plan.folder)
        assert not read(plan).ready
        down(plan.home)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.turn
def test_a_spark_cluster_is_supervised_and_registered(plan: Plan) -> None:
    """Its real master, a real worker and the real control plane, without agents."""
    control_plane = Plan.model_fields["control_plane"].default
    plan = plan.model_copy(update={"spark_workers": 1, "agents": 0, "timeout_s": 120, "control_plane": control_plane})
    state = background.start(plan, silent)
    assert list(state.spark) == ["spark-master", "spark-worker-1"]
    with Client(state.api, read_token(plan.token_file)) as client:
        cluster = client.clusters.get("local")
    assert cluster.spec.master == state.spark_master
    assert cluster.spec.ui == state.spark_ui
    secret = plan.home / "secrets" / "clusters" / cluster.spec.auth_secret
    assert secret.read_text() == (plan.folder.path / "spark" / "secret").read_text()
    assert secret.stat().st_mode & 0o077 == 0
    worker = state.spark["spark-worker-1"]
    os.kill(worker.pid, signal.SIGKILL)
    restarted = eventually(
        lambda: (process := read(plan).spark["spark-worker-1"]) != worker and process, "the worker is restarted"
    )
    assert down(plan.home)
    assert restarted.find() is None
    assert state.spark["spark-master"].find() is None


def test_the_spark_cluster_keeps_its_ports(plan: Plan) -> None:
    """Jobs that run again with the platform were placed with the master's address."""
    jars = ensure_jars(Settings())
    first = plan.spark(jars)
    assert plan.spark(jars).master == first.master
    assert plan.spark(jars).ui == first.ui
    port = int(first.master.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        assert plan.spark(jars).master != first.master


def test_a_spark_master_that_exits_during_start_fails_the_start(plan: Plan, tmp_path: Path) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho no memory\nexit 1\n")
    java.chmod(0o755)
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="17.0.9"\nMODULES="java.base"\n')
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JAVA_HOME", str(tmp_path / "jdk"))
        with pytest.raises(LocalPlatformFailed, match="spark-master exited during start:\nno memory"):
            background.start(plan.model_copy(update={"spark_workers": 1}), silent)
