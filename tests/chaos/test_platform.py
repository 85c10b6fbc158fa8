"""A job on the platform, through crashes of its driver, the control plane and a host: exactly once, and told so."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from shouting import JOB, PATIENCE_S, Shout, started

from integration.test_up_and_down import Machine
from observe import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.embedded, pytest.mark.timeout(600)]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "home")
    yield made
    made.clonos("down")


def test_crashes_of_everything(machine: Machine, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    up, plain = started(machine, request)
    shout = Shout(plain, up["kafka"])
    (tmp_path / "job.py").write_text(JOB)
    machine.json("submit", str(tmp_path / "job.py"), "-p", "in=in", "-p", "out=out")
    shout.feed()
    shout.await_all("the first records are published")
    home = str(shout.job()["agent"])

    # The driver: its agent starts it again.
    shout.kill()
    shout.feed()
    shout.await_all("it goes on after its driver was killed")
    recovery = eventually(
        lambda: next((one for one in machine.json("recovery", "ls", "shout")["data"] if one["gap_ms"]), None),
        "the recovery is told",
        timeout_s=PATIENCE_S,
    )
    assert (recovery["failed_generation"], recovery["generation"], recovery["to_agent"]) == (1, 2, home)
    assert recovery["failure"]["error"] == "driver-died"
    assert machine.json("job", "inspect", "shout")["job"]["generation"] == 2

    # The control plane hangs, and the driver dies meanwhile: nobody is needed for the restart.
    state = json.loads((machine.home / "local" / "state.json").read_text())
    driver = shout.driver()
    control_plane = psutil.Process(state["control_plane"]["pid"])
    control_plane.suspend()
    try:
        shout.kill(driver)
        shout.feed()
        shout.await_all("it goes on although the control plane hangs")
    finally:
        control_plane.resume()
    eventually(lambda: shout.job()["generation"] == 3, "it is told afterwards", timeout_s=PATIENCE_S)

    # The host: its agent hangs and its driver is gone, so the job moves; the agent wakes up and leaves it alone.
    shout.driver()
    agent = psutil.Process(state["agents"][home]["pid"])
    agent.suspend()
    try:
        shout.kill()
        shout.feed()
        shout.await_all("it goes on on the other host")
        assert shout.job()["agent"] != home
    finally:
        agent.resume()
    shout.feed()
    shout.await_all("it goes on after the host is back")

    (job,) = plain.get("/jobs").json()["data"]
    assert (job["state"], job["generation"]) == ("RUNNING", 4)
    stopping = plain.post(f"/jobs/{job['id']}/stop", json={"mode": "graceful"})
    assert stopping.status_code == 202
    eventually(
        lambda: plain.get(f"/operations/{stopping.json()['id']}").json()["state"] == "COMPLETED",
        "it stops",
        timeout_s=PATIENCE_S,
    )
    assert plain.get(f"/jobs/{job['id']}").json()["state"] == "STOPPED"
    causes = [one["cause"] for one in plain.get(f"/jobs/{job['id']}/generations").json()["data"]]
    assert causes[::-1] == ["start", "crash", "crash", "host-lost"]
    shout.check()
    machine.clonos("down")
    assert machine.processes() == []


def test_sigterm_ends_all_with_a_driver_that_works(
    machine: Machine, tmp_path: Path, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    """And the next `clonos up` goes on with the job."""
    up, plain = started(machine, request)
    shout = Shout(plain, up["kafka"])
    (tmp_path / "job.py").write_text(JOB)
    machine.json("submit", str(tmp_path / "job.py"), "-p", "in=in", "-p", "out=out")
    shout.feed()
    shout.await_all("the first records are published")
    shout.feed(200)
    took_s = machine.sigterm()
    record_property("ended_s", round(took_s, 2))
    assert took_s < 10.0  # two to three seconds where nothing else runs
    machine.json("up", "--detach", "--port", up["api"].rsplit(":", 1)[1])
    shout.feed()
    shout.await_all("the job goes on")
    shout.check()
