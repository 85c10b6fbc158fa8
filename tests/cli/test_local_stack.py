"""The supervisor of `clonos up`, with stubs for what it starts: real processes, real signals, no Kafka."""

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

from clonos.agent.place import Place, RunRecord
from clonos.agent.process import identity
from clonos.client.credentials import Credentials
from clonos.embedded.processes import Recorded
from clonos.errors import DirectoryTaken, LocalStackFailed, PortTaken
from clonos.local import background
from clonos.local.drivers import end_drivers
from clonos.local.plan import FIRST_PORT, Plan, free_port
from clonos.local.stack import Stack, down
from clonos.local.state import Folder, State
from observe import eventually

STUBS = Path(__file__).parent / "stubs"
CONTROL_PLANE = (sys.executable, str(STUBS / "control_plane.py"))


@pytest.fixture
def plan(home: Path) -> Iterator[Plan]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    yield Plan(
        home=home,
        port=port,
        kafka=False,
        control_plane=CONTROL_PLANE,
        agent=(sys.executable, str(STUBS / "agent.py")),
        timeout_s=60,
    )
    down(home)


def parts(state: State) -> list[Recorded]:
    assert state.control_plane is not None
    return [state.control_plane, *state.agents.values()]


def running(state: State) -> list[Recorded]:
    return [one for one in [state.supervisor, *parts(state)] if one.find() is not None]


def read(plan: Plan) -> State:
    state = State.read(plan.folder)
    assert state is not None
    return state


def silent(_line: str) -> None:
    pass


def test_in_the_background_until_down(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLONOS_TOKEN", "of-the-user")
    said: list[str] = []
    state = background.start(plan, said.append)
    assert said[0] == "Starting the control plane."
    assert state.ready
    assert state.api == f"http://127.0.0.1:{plan.port}"
    assert list(state.agents) == ["host-1", "host-2"]
    assert len(running(state)) == 4
    assert {os.getsid(one.pid) for one in parts(state)}.isdisjoint({os.getsid(0)})
    credentials = Credentials.read(plan.home)
    assert credentials is not None
    assert credentials.api == state.api
    given = json.loads((plan.home / "environment.json").read_text())
    assert "CLONOS_TOKEN" not in given
    assert given["CLONOS_API__SHARED_CHECKPOINTS"] == str(plan.home / "jobs")
    assert down(plan.home)
    assert running(state) == []
    assert State.read(plan.folder) is None
    assert not down(plan.home)


def test_everything_that_is_written_is_below_home(plan: Plan) -> None:
    background.start(plan, silent)
    down(plan.home)
    folders = {one.name for one in plan.home.iterdir()}
    assert folders == {"local", "credentials.json", "admin.token", "environment.json"}
    private = [plan.home / "credentials.json", *plan.folder.tokens.iterdir()]
    assert all(file.stat().st_mode & 0o077 == 0 for file in private)


def test_what_ends_is_started_again(plan: Plan) -> None:
    state = background.start(plan, silent)
    victims = [state.agents["host-1"], state.control_plane]
    for victim in victims:
        assert victim is not None
        os.kill(victim.pid, signal.SIGKILL)
    again = eventually(
        lambda: (now := read(plan)).control_plane != victims[1] and now.agents["host-1"] != victims[0] and now,
        "both are there again",
    )
    assert again.agents["host-2"] == state.agents["host-2"]
    eventually(lambda: len(running(read(plan))) == 4, "all run")
    log = plan.folder.log("supervisor").read_text()
    assert "host-1 has ended; it is started again" in log


def test_a_supervisor_that_was_killed_is_cleaned_up_after(plan: Plan) -> None:
    before = background.start(plan, silent)
    os.kill(before.supervisor.pid, signal.SIGKILL)
    eventually(lambda: before.supervisor.find() is None, "it is gone")
    assert not read(plan).ready
    assert len(running(before)) == 3, "nobody ends them"
    state = background.start(plan, silent)
    assert running(before) == []
    assert len(running(state)) == 4
    os.kill(state.supervisor.pid, signal.SIGKILL)
    assert down(plan.home)
    assert running(state) == []


def test_two_at_once(plan: Plan) -> None:
    state = background.start(plan, silent)
    with pytest.raises(DirectoryTaken, match="Another `clonos up`"):
        Stack(plan, silent, threading.Event()).run()
    assert len(running(state)) == 4, "the first is left alone"


def test_a_part_that_does_not_start(plan: Plan) -> None:
    broken = plan.model_copy(update={"control_plane": (*CONTROL_PLANE, "broken")})
    with pytest.raises(LocalStackFailed, match="there is no database") as caught:
        background.start(broken, silent)
    assert "control-plane.log" in caught.value.hint
    assert State.read(plan.folder) is None
    assert not down(plan.home)


def test_an_agent_that_does_not_answer(plan: Plan) -> None:
    deaf = plan.model_copy(update={"timeout_s": 2.0, "agents": 1})
    deaf = deaf.model_copy(update={"agent": (sys.executable, "-c", "import time; time.sleep(600)")})
    ended: list[Recorded] = []

    def note(_line: str) -> None:
        state = State.read(plan.folder)
        ended.extend(parts(state) if state is not None and state.control_plane is not None else [])

    with pytest.raises(LocalStackFailed, match="host-1 did not answer in 2 s"):
        background.start(deaf, note)
    assert ended
    assert [one for one in ended if one.find() is not None] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_in_order(plan: Plan, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "clonos.local", plan.model_dump_json()], stdout=subprocess.DEVNULL
    )
    state = eventually(
        lambda: (found := State.read(plan.folder)) is not None and found.status == "ready" and found, "it is up"
    )
    process.send_signal(number)
    assert process.wait(30) == 0
    assert running(state) == []
    assert State.read(plan.folder) is None


def test_a_signal_while_it_starts(plan: Plan) -> None:
    deaf = plan.model_copy(update={"agent": (sys.executable, "-c", "import time; time.sleep(600)")})
    process = subprocess.Popen(
        [sys.executable, "-m", "clonos.local", deaf.model_dump_json()], stdout=subprocess.DEVNULL
    )
    state = eventually(
        lambda: (found := State.read(plan.folder)) is not None and len(found.agents) == 2 and found, "agents start"
    )
    process.terminate()
    assert process.wait(30) == 0
    assert running(state) == []


def test_drivers_of_an_agent_that_was_killed(home: Path, tmp_path: Path) -> None:
    """They are known by what the agent wrote down, and by what is in their environment."""
    child = "import subprocess, sys; subprocess.run(['sleep', '600'])"
    run = "0a1b"
    driver = subprocess.Popen(
        [sys.executable, "-c", child], start_new_session=True, env={**os.environ, "CLONOS_RUN": run}
    )
    below = eventually(lambda: psutil.Process(driver.pid).children(), "it has a child")
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    place = Place(home / "agent" / "host-1").run(run)
    place.make("")
    place.write_record(RunRecord(attempt=1, pid=driver.pid, identity=identity(driver.pid) or ""))
    try:
        assert end_drivers(home, ["host-1", "host-2"]) == 2
        assert driver.wait(5) == -signal.SIGKILL
        assert not below[0].is_running() or below[0].status() == psutil.STATUS_ZOMBIE
        assert bystander.poll() is None
        assert end_drivers(home, ["host-1"]) == 0
    finally:
        bystander.kill()
        bystander.wait()


def test_the_first_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=str(port)):
            free_port(port)
        monkeypatch.setattr("clonos.local.plan.FIRST_PORT", port)
        assert free_port(None) != port
    assert FIRST_PORT == 8484


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"status": "ready"}'])
def test_a_state_that_nobody_wrote(home: Path, text: str) -> None:
    folder = Folder.of(home)
    folder.make()
    (folder.path / "state.json").write_text(text)
    assert State.read(folder) is None


def test_a_reused_process_id_is_not_ours(plan: Plan) -> None:
    """A state from before a reboot: its ids belong to others now."""
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        plan.folder.make()
        old = Recorded(bystander.pid, 1.0)
        State("ready", old, control_plane=old, agents={"host-1": old}).write(plan.folder)
        assert not read(plan).ready
        down(plan.home)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
