"""A job with ``standby: {mode: pool}``: its drivers are spares, which were warm before they knew of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from shouting import JOB, PATIENCE_S, Shout, started

from integration.test_up_and_down import Machine
from observe import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.embedded, pytest.mark.timeout(600)]

HELPED = JOB.replace("import clonos\n", "import clonos\nfrom helper import marked\n").replace(
    '{clonos.uuid4(value)}"', '{marked(clonos.uuid4(value))}"'
)
HELPER = 'def marked(value):\n    return f"<{value}>"\n'


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "home")
    yield made
    made.clonos("down")
    assert made.processes() == []


def test_drivers_are_spares(machine: Machine, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    up, plain = started(machine, request, "--agents", "1", "--spares", "1")
    shout = Shout(plain, up["kafka"])
    job = tmp_path / "job"
    job.mkdir()
    (job / "job.py").write_text(HELPED)
    (job / "helper.py").write_text(HELPER)
    spec = {"main": "job.py", "params": {"in": "in", "out": "out"}, "standby": {"mode": "pool"}}
    named = {"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": "shout"}, "spec": spec}
    (job / "job.yaml").write_text(yaml.safe_dump(named))

    def warm() -> bool:
        return bool(machine.json("host", "ls")["data"][0]["spares"] == 1)

    eventually(warm, "a spare is warm", timeout_s=PATIENCE_S)
    machine.json("submit", str(job))
    shout.feed()
    shout.await_all("the first records are published")
    for attempt in range(2):
        eventually(warm, "another one is warm", timeout_s=PATIENCE_S)
        driver = shout.driver()
        assert driver.environ()["CLONOS_RUN"].startswith("spare-"), attempt
        shout.kill(driver)
        shout.feed()
        shout.await_all("the next one goes on")
    shout.check()
    assert all(b"<" in (row.value() or b"") for row in shout.rows()), "workers have the job's modules"
    recovery = machine.json("recovery", "ls", "shout")["data"][0]
    print(recovery["gap_ms"], {one["name"]: one["duration_ms"] for one in recovery["phases"]})
    log = machine.clonos("job", "logs", "shout")
    assert "recovered" in log or "RUNNING" in log, log[-2000:]
