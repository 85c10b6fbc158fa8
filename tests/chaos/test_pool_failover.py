"""Pool drivers, warm before they are assigned to a job, become its drivers and its standbys."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import yaml
from stamped_job import JOB, TIMEOUT_S, StampedJob

from clonos.testing.harness import Stack, eventually
from clonos.testing.harness.processes import kill_together

pytestmark = [pytest.mark.embedded, pytest.mark.timeout(3000)]

HELPED = JOB.replace("import clonos\n", "import clonos\nfrom helper import marked\n").replace(
    '{clonos.uuid4(value)}"', '{marked(clonos.uuid4(value))}"'
)
HELPER = 'def marked(value):\n    return f"<{value}>"\n'


def job_folder(parent: Path, standby: dict[str, object]) -> Path:
    """A folder with the job and a module that it imports."""
    folder = parent / "job"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "job.py").write_text(HELPED)
    (folder / "src" / "helper.py").write_text(HELPER)
    body = {
        "main": "src/job.py",  # workers import the modules beside it
        "params": {"in": "in", "out": "out"},
        "standby": standby,
        "sparkConf": {"spark.sql.shuffle.partitions": "3"},
    }
    spec = {"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": "stamped"}, "spec": body}
    (folder / "job.yaml").write_text(yaml.safe_dump(spec))
    return folder


def was_in_pool(pid: int) -> bool:
    return psutil.Process(pid).environ()["CLONOS_RUN"].startswith("pool-driver-")


@pytest.mark.full
@pytest.mark.chaos(fault="SIGKILL", target="driver", topology="clonos up --pool-size")
def test_pool_drivers_run_the_job_and_its_restarts(stack: Stack, tmp_path: Path) -> None:
    stack.up("--agents", "1", "--pool-size", "1")
    job = StampedJob(stack.client, stack.kafka)
    folder = job_folder(tmp_path, {"mode": "pool"})

    def warm() -> bool:
        return bool(stack.json("host", "ls")["data"][0]["pool_available"] == 1)

    eventually(warm, "a pool driver is warm", timeout_s=TIMEOUT_S)
    stack.cli("submit", str(folder))
    job.feed()
    job.await_all("the first records are published")
    for attempt in range(2):
        eventually(warm, "the next pool driver is warm", timeout_s=TIMEOUT_S)
        driver = job.await_driver()
        assert was_in_pool(driver.pid), attempt
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


@pytest.mark.full
@pytest.mark.chaos(fault="SIGKILL", target="driver and standby", topology="clonos up --pool-size")
def test_pool_drivers_replace_a_driver_and_its_standby(stack: Stack, tmp_path: Path) -> None:
    stack.up("--agents", "2", "--pool-size", "1")
    job = StampedJob(stack.client, stack.kafka)

    def warm() -> bool:
        return [host["pool_available"] for host in stack.json("host", "ls")["data"]] == [1, 1]

    eventually(warm, "each host has a pool driver that is warm", timeout_s=TIMEOUT_S)
    stack.cli("submit", str(job_folder(tmp_path, {"replicas": 1})))
    job.feed()
    job.await_all("the first records are published")
    driver, standby = job.await_driver(), job.await_process(job.await_standby().id)
    assert not was_in_pool(driver.pid), "the pool drivers are for recoveries"
    assert was_in_pool(standby.pid)

    # The standby takes over, and the next standby starts where the driver was.
    driver.kill()
    job.feed()
    job.await_all("the standby publishes")
    driver, standby = job.await_driver(), job.await_process(job.await_standby().id)
    assert was_in_pool(driver.pid)
    assert was_in_pool(standby.pid)

    eventually(warm, "each host has another pool driver that is warm", timeout_s=TIMEOUT_S)
    kill_together(driver, standby)
    job.feed()
    job.await_all("a pool driver publishes")
    assert was_in_pool(job.await_driver().pid)
    job.check()
    assert all(b"<" in (row.value() or b"") for row in job.rows()), "workers have the job's modules"
    for recovery in stack.json("recovery", "ls", "stamped")["data"]:
        print(recovery["downtime_ms"], {phase["name"]: phase["duration_ms"] for phase in recovery["phases"]})
    stack.down()
    assert stack.processes() == []
