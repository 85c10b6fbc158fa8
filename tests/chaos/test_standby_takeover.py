"""A standby takes over: from a driver that was killed, from a host that is gone; and is replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from shouting import JOB, PATIENCE_S, Shout, started

from integration.test_up_and_down import Machine
from observe import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.embedded, pytest.mark.timeout(600)]

SPEC = {"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": "shout"}}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "home")
    yield made
    made.clonos("down")


def ready(shout: Shout) -> dict[str, Any]:
    """The standby that could take over now."""

    def found() -> dict[str, Any] | None:
        page = shout.http.get("/jobs/shout/standbys").json()["data"]
        return next((one for one in page if one["state"] == "READY"), None)

    standby: dict[str, Any] = eventually(found, "a standby is READY", timeout_s=PATIENCE_S)
    return standby


def test_a_standby_takes_over(machine: Machine, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    up, plain = started(machine, request)
    shout = Shout(plain, up["kafka"])
    job = tmp_path / "job"
    job.mkdir()
    (job / "job.py").write_text(JOB)
    spec = {"main": "job.py", "params": {"in": "in", "out": "out"}, "standby": {"replicas": 1}}
    (job / "job.yaml").write_text(yaml.safe_dump({**SPEC, "spec": spec}))
    machine.json("submit", str(job))
    shout.feed()
    shout.await_all("the first records are published")

    for generation in (2, 3):
        home = shout.job()["agent"]
        standby = ready(shout)
        assert standby["agent"] != home
        assert "another failure domain" in standby["why_here"]
        shout.kill()
        shout.feed()
        shout.await_all("the standby goes on")

        def over(generation: int = generation) -> bool:
            now = shout.job()
            return bool(now["state"] == "RUNNING" and now["generation"] == generation)

        eventually(over, "it is told", timeout_s=PATIENCE_S)
        assert shout.job()["agent"] == standby["agent"], "where the standby was"
        recovery = machine.json("recovery", "ls", "shout")["data"][0]
        print(recovery)
        assert (recovery["cause"], recovery["generation"]) == ("crash", generation)
        assert (recovery["from_agent"], recovery["to_agent"]) == (home, standby["agent"])
    shout.check()
