"""`clonos up --detach` to `clonos down` with everything real: Kafka, the control plane, two agents; no Spark."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from observe import eventually

pytestmark = pytest.mark.embedded

JOB = '@clonos.job(name="shout")\ndef shout(ctx):\n    pass\n'


class Machine:
    """A machine of its own: a home, and commands in it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CLONOS_")}
        self._environment = {**kept, "CLONOS_HOME": str(home)}

    def clonos(self, *arguments: str, code: int = 0) -> str:
        done = self._run(*arguments)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def answers(self, *arguments: str) -> bool:
        return self._run(*arguments).returncode == 0

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "clonos", *arguments]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=240)

    def json(self, *arguments: str) -> Any:
        return json.loads(self.clonos(*arguments, "-o", "json"))

    def sigterm(self) -> float:
        """End all by SIGTERM to the supervisor, while somebody reads events; the seconds until nothing is left."""
        state = json.loads((self.home / "local" / "state.json").read_text())
        token = json.loads((self.home / "credentials.json").read_text())["token"]
        with (
            httpx.Client(
                base_url=state["api"], headers={"Authorization": f"Bearer {token}"}, trust_env=False
            ) as client,
            client.stream("GET", "/api/v1/events") as events,
        ):
            lines = events.iter_lines()
            assert next(lines) == ": alive"
            begun = time.monotonic()
            os.kill(state["supervisor"]["pid"], signal.SIGTERM)
            list(lines)  # to its end
            told_s = time.monotonic() - begun
            eventually(lambda: not self.processes(), "all have ended", timeout_s=60)
            took_s = time.monotonic() - begun
        print(f"the stream ended after {told_s:.2f} s, the last process after {took_s:.2f} s")
        assert not (self.home / "local" / "state.json").exists(), "it ended in order"
        return took_s

    def processes(self) -> list[str]:
        """Commands of all that belongs to this home."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("CLONOS_HOME") == str(self.home):
                    found.append(" ".join(process.cmdline()[:4]))
            except psutil.Error:
                continue
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "home")
    yield made
    made.clonos("down")


def test_everything_on_one_machine(machine: Machine, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    up = machine.json("up", "--detach", "--port", port)
    assert up["api"] == f"http://127.0.0.1:{port}"
    assert machine.json("up")["already"], "a second one says so, and returns"

    hosts = machine.json("host", "ls")["data"]
    assert {(host["name"], host["failure_domain"], host["state"]) for host in hosts} == {
        ("host-1", "host-1", "READY"),
        ("host-2", "host-2", "READY"),
    }
    assert machine.json("token", "show")["role"] == "admin"

    (tmp_path / "job.py").write_text(JOB)
    job = machine.json("submit", str(tmp_path / "job.py"), "--no-start")
    assert machine.json("job", "inspect", "shout")["job"]["id"] == job["id"]
    machine.clonos("submit", str(tmp_path / "job.py"), code=83)
    machine.clonos("job", "rm", "shout")
    assert machine.json("events", "--tail", "1", "--type", "job.deleted")["data"]["name"] == "shout"

    checks = {one["name"]: one for one in machine.json("doctor")["checks"]}
    for name in ("Kafka", "transactions", "clock", "database", "hosts"):
        assert checks[name]["status"] == "ok", checks[name]

    state = json.loads((machine.home / "local" / "state.json").read_text())
    os.kill(state["control_plane"]["pid"], signal.SIGKILL)
    eventually(lambda: machine.answers("job", "ls"), "it is back")
    assert machine.clonos("host", "ls", "-o", "name").split() == ["host-1", "host-2"]

    assert "ended" in machine.clonos("down")
    assert machine.processes() == []
    assert "Nothing is up." in machine.clonos("down")
    machine.clonos("job", "ls", code=48)

    # The same again: data is kept, and so is who one is.
    again = machine.json("up", "--detach", "--port", port, "--agents", "1")
    assert again["hosts"] == ["host-1"]
    assert machine.json("token", "show")["role"] == "admin"
    assert len([one for one in machine.json("token", "ls")["data"] if one["role"] == "agent"]) == 2, "used again"


def test_sigterm_ends_all_of_it_in_time(machine: Machine, record_property: Callable[[str, object], None]) -> None:
    """Kafka, the control plane and two agents."""
    machine.json("up", "--detach")
    took_s = machine.sigterm()
    record_property("ended_s", round(took_s, 2))
    assert took_s < 10.0  # one or two where nothing else runs


def test_a_crash_of_all_is_cleaned_up(machine: Machine) -> None:
    machine.clonos("up", "--detach", "--agents", "1")
    state = json.loads((machine.home / "local" / "state.json").read_text())
    os.kill(state["supervisor"]["pid"], signal.SIGKILL)
    os.kill(state["agents"]["host-1"]["pid"], signal.SIGKILL)
    assert "ended" in machine.clonos("down")
    assert machine.processes() == []
