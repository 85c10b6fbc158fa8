"""`clonos up --detach` to `clonos down` with everything real: Kafka, the control plane, two agents; no Spark."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from clonos.agent.priority import Priority, may_raise
from clonos.embedded.layout import free_ports
from clonos.testing.harness import Stack, eventually
from support.local_stack import end_by_sigterm

pytestmark = pytest.mark.embedded

JOB = '@clonos.job(name="empty")\ndef empty(ctx):\n    pass\n'


@pytest.mark.ci
def test_everything_on_one_machine(stack: Stack, tmp_path: Path) -> None:
    port = str(free_ports(1)[0])
    up = stack.json("up", "--detach", "--port", port)
    assert up["api"] == f"http://127.0.0.1:{port}"
    assert stack.json("up")["already"], "a second `up` reports it and returns"

    hosts = stack.json("host", "ls")["data"]
    assert {(host["name"], host["failure_domain"], host["state"]) for host in hosts} == {
        ("host-1", "host-1", "READY"),
        ("host-2", "host-2", "READY"),
    }
    assert stack.json("token", "show")["role"] == "admin"
    state = stack.state()
    for part in (state["control_plane"], *state["agents"].values()):
        group = Path(f"/proc/{part['pid']}/autogroup")
        if may_raise() and group.exists():
            assert group.read_text().split()[-1] == str(int(Priority.SERVICE)), "it comes before drivers"

    (tmp_path / "job.py").write_text(JOB)
    job = stack.json("submit", str(tmp_path / "job.py"), "--no-start")
    assert stack.json("job", "inspect", "empty")["job"]["id"] == job["id"]
    assert stack.run("submit", str(tmp_path / "job.py")).returncode == 83
    stack.cli("job", "rm", "empty")
    assert stack.json("events", "--tail", "1", "--type", "job.deleted")["data"]["name"] == "empty"

    checks = {check["name"]: check for check in stack.json("doctor")["checks"]}
    for name in ("Kafka", "transactions", "clock", "database", "hosts"):
        assert checks[name]["status"] == "ok", checks[name]

    state = stack.state()
    os.kill(state["control_plane"]["pid"], signal.SIGKILL)
    eventually(lambda: stack.run("job", "ls").returncode == 0, "the control plane is restarted", timeout_s=120)
    assert stack.cli("host", "ls", "-o", "name").split() == ["host-1", "host-2"]

    refused = stack.run("kafka", "stop")
    assert (refused.returncode, "clonos down" in refused.stderr) == (34, True), "a platform uses it"
    assert "has stopped" in stack.cli("kafka", "stop", "--yes")
    eventually(lambda: stack.json("kafka", "status")["running"], "the platform starts Kafka again", timeout_s=60)

    assert "stopped" in stack.cli("down")
    assert stack.processes() == []
    assert "Nothing is running." in stack.cli("down")
    assert stack.run("job", "ls").returncode == 48

    # A second start keeps the data and the credentials.
    again = stack.json("up", "--detach", "--port", port, "--agents", "1")
    assert again["hosts"] == ["host-1"]
    assert stack.json("token", "show")["role"] == "admin"
    assert len([token for token in stack.json("token", "ls")["data"] if token["role"] == "agent"]) == 2, (
        "agent tokens are used again"
    )


@pytest.mark.turn
def test_sigterm_ends_all_processes(stack: Stack, record_property: Callable[[str, object], None]) -> None:
    """Kafka, the control plane and two agents."""
    stack.json("up", "--detach")
    record_property("ended_s", round(end_by_sigterm(stack), 2))


@pytest.mark.turn
def test_down_cleans_up_after_a_crash(stack: Stack) -> None:
    stack.cli("up", "--detach", "--agents", "1")
    state = stack.state()
    os.kill(state["supervisor"]["pid"], signal.SIGKILL)
    os.kill(state["agents"]["host-1"]["pid"], signal.SIGKILL)
    assert "stopped" in stack.cli("down")
    assert stack.processes() == []
