"""A job with ``standby: {mode: pool}``: its drivers come from the pool, warm before they are assigned to the job."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import yaml
from stamped_job import JOB, TIMEOUT_S, StampedJob

from clonos.testing.harness import Stack, eventually

pytestmark = [pytest.mark.embedded, pytest.mark.timeout(3000)]

HELPED = JOB.replace("import clonos\n", "import clonos\nfrom helper import marked\n").replace(
    '{clonos.uuid4(value)}"', '{marked(clonos.uuid4(value))}"'
)
HELPER = 'def marked(value):\n    return f"<{value}>"\n'


@pytest.mark.full
@pytest.mark.chaos(fault="SIGKILL", target="driver", topology="clonos up --pool-size")
def test_pool_drivers_run_the_job_and_its_restarts(stack: Stack, tmp_path: Path) -> None:
    stack.up("--agents", "1", "--pool-size", "1")
    job = StampedJob(stack.client, stack.kafka)
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "job.py").write_text(HELPED)
    (folder / "helper.py").write_text(HELPER)
    body = {"main": "job.py", "params": {"in": "in", "out": "out"}, "standby": {"mode": "pool"}}
    spec = {"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": "stamped"}, "spec": body}
    (folder / "job.yaml").write_text(yaml.safe_dump(spec))

    def warm() -> bool:
        return bool(stack.json("host", "ls")["data"][0]["pool_available"] == 1)

    eventually(warm, "a pool driver is warm", timeout_s=TIMEOUT_S)
    stack.cli("submit", str(folder))
    job.feed()
    job.await_all("the first records are published")
    for attempt in range(2):
        eventually(warm, "the next pool driver is warm", timeout_s=TIMEOUT_S)
        driver = job.await_driver()
        assert psutil.Process(driver.pid).environ()["CLONOS_RUN"].startswith("pool-driver-"), attempt
        driver.kill()
        job.feed()
        job.await_all("the next driver publishes")
    job.check()
    assert all(b"<" in (row.value() or b"") for row in job.rows()), "workers have the job's modules"
    recovery = stack.json("recovery", "ls", "stamped")["data"][0]
    print(recovery["downtime_ms"], {phase["name"]: phase["duration_ms"] for phase in recovery["phases"]})
    log = stack.cli("logs", "stamped")
    assert "recovered" in log or "RUNNING" in log, log[-2000:]
    stack.down()
    assert stack.processes() == []
