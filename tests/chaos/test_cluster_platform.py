"""The commands of docs/start/spark-cluster.md: `clonos up --spark-workers 2`, and a job with a standby on it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import yaml
from stamped_job import JOB, StampedJob

from clonos.resources.clusters import ClusterState
from clonos.testing.harness import Stack, eventually
from clonos.testing.harness.processes import executors_of

pytestmark = [pytest.mark.embedded, pytest.mark.timeout(3000)]

SPEC = {"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": "stamped"}}


@pytest.mark.full
@pytest.mark.chaos(
    fault="SIGKILL, one after the other", target="executor, worker, driver", topology="clonos up --spark-workers 2"
)
def test_a_job_on_the_local_cluster_survives_each_process(stack: Stack, tmp_path: Path) -> None:
    up = stack.up("--spark-workers", "2")
    assert up["spark"]["master"].startswith("spark://127.0.0.1:")
    assert stack.client.clusters.get("local").state is ClusterState.READY
    job = StampedJob(stack.client, stack.kafka)
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "job.py").write_text(JOB)
    spec = {"main": "job.py", "params": {"in": "in", "out": "out"}, "executor": {"memory": "512m"}}
    (folder / "job.yaml").write_text(yaml.safe_dump({**SPEC, "spec": spec}))
    stack.cli("submit", str(folder), "--cluster", "local", "--standbys", "1")
    job.feed()
    job.await_all("the first records are published")

    def registered() -> int:
        run = stack.client.jobs.run("stamped", job.get().run or "")
        return run.executors.registered if run.executors else 0

    eventually(lambda: registered() == 2, "the control plane knows the executors")
    assert stack.client.clusters.get("local").jobs == ["stamped"]
    assert "2 of 2 registered" in stack.cli("job", "inspect", "stamped")

    job.await_standby()  # an executor that starts while its worker is killed would outlive it
    assert job.kill_executor().processes > 0
    job.feed()
    job.await_all("another executor continues")

    worker = stack.state()["spark"]["spark-worker-1"]
    os.kill(worker["pid"], signal.SIGKILL)
    job.feed()
    job.await_all("the job continues without the worker")
    eventually(lambda: stack.state()["spark"]["spark-worker-1"] != worker, "the worker is restarted")

    standby = job.await_standby()
    application = stack.client.jobs.run("stamped", standby.id).application_id
    # Its executor may have been on the worker that was killed.
    eventually(lambda: len(executors_of(application)) == 1, "a standby holds one executor")
    (warm,) = executors_of(application)
    replaced = job.executors()
    job.kill_driver()
    job.feed()
    job.await_all("the standby publishes")
    assert job.get().run == standby.id
    assert warm.is_running(), "it stays warm"
    eventually(lambda: len(job.executors()) == 2, "the other executor is requested at the promotion")
    eventually(lambda: registered() == 2, "the control plane knows the standby's")
    eventually(lambda: not any(process.is_running() for process in replaced), "the driver's executors have exited")
    recovery = stack.json("recovery", "ls", "stamped")["data"][0]
    assert (recovery["cause"], recovery["to_host"]) == ("crash", standby.host)
    job.check()
