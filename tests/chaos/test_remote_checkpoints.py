"""Checkpoints on HDFS and on S3: a driver is killed in doubt, and a standby rehearses on the state and takes over."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from drivers import JOBS, Feeder, JobRun, Published, caught_up, expected_counts, final_counts
from standbys import Standbys

from clonos.resources.hosts import HostTask, TaskResult
from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, read_committed
from support.hdfs import Hdfs
from support.s3 import S3

pytestmark = [pytest.mark.full, pytest.mark.timeout(3000)]

Store = Hdfs | S3
DRIVERS_MB = 640


@dataclass
class RemoteRun(JobRun):
    """A job whose next driver first restores its checkpoint, as the agent starts it.

    Args:
        restore: The arguments of `clonos.agent.restoring` before the driver's command; empty: nothing is restored.
    """

    restore: tuple[str, ...] = ()

    def command(self) -> list[str]:
        own = super().command()
        return [sys.executable, "-m", "clonos.agent.restoring", *self.restore, *own] if self.restore else own


@pytest.fixture(params=[pytest.param("hdfs", marks=pytest.mark.turn(1)), "s3a"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    server: Store = Hdfs(tmp_path / "hdfs") if request.param == "hdfs" else S3()
    with server:
        yield server


@pytest.fixture
def standbys(
    kafka: KafkaSettings, store: Store, name: str, make_topic: Callable[..., str], tmp_path: Path
) -> Iterator[Standbys]:
    params = {"input": make_topic(2, "in"), "output": make_topic(2, "out"), "counts": make_topic(2, "counts")}
    spec = {
        "checkpoint": f"{store.url}/jobs/{name}",
        "sparkConf": store.conf,
        "driver": {"memory": f"{DRIVERS_MB}m"},
        "trigger": {"interval": "2s"},  # the stand-in for S3 answers slowly
    }
    run = RemoteRun(kafka, name, tmp_path / "home", JOBS / "points.py", params, spec)
    yield Standbys(run)
    run.end()


@pytest.mark.chaos(fault="SIGKILL at a protocol point; SIGKILL", target="driver", topology="HDFS, S3")
def test_a_remote_checkpoint_survives_a_kill_in_doubt_and_a_takeover(
    kafka: KafkaSettings, store: Store, standbys: Standbys
) -> None:
    run = standbys.run
    checkpoint = f"{store.url}/jobs/{run.name}"
    with Feeder(kafka, run.params["input"], 2, every_s=0.5) as feeder:
        run.start("lane-committed,epoch=1:kill").await_kill()
        assert json.loads(store.read(f"{checkpoint}/owner.json"))["job"] == run.name
        driver = run.start()
        eventually(lambda: any(epoch["replay"] for epoch in run.events_of("epoch")), "a replay", timeout_s=180)
        so_far = list(feeder.sent)  # more records follow while this waits
        eventually(lambda: caught_up(run, run.params["output"], so_far), "it caught up", timeout_s=120)
        standby, pipe = standbys.start_ready()
        eventually(lambda: run.events_of("rehearsed"), "the standby has rehearsed", timeout_s=180)
        assert run.events_of("rehearsed")[-1]["state"]["counts"] in ("changes", "snapshot")
        driver.kill()
        standbys.promote(pipe)
        generation = standbys.generation()
        standbys.await_epoch_of(standby, generation + 1)
    assert not run.events_of("not-rehearsed")
    output, counts = run.params["output"], run.params["counts"]
    eventually(lambda: caught_up(run, output, feeder.sent), "the standby caught up", timeout_s=120)
    eventually(lambda: final_counts(kafka, counts) == expected_counts(feeder.sent), "all are counted", timeout_s=120)
    assert Published.read(kafka, output).faults(feeder.sent) == {}
    standby.stop_gracefully()
    assert "metadata" in store.names(f"{checkpoint}/counts")


def host_task(kind: str, **arguments: Any) -> dict[str, Any]:
    """Execute a host task as the agent does."""
    task = HostTask.model_validate({"task": "t", "kind": kind, "arguments": arguments})
    done = subprocess.run(
        [sys.executable, "-m", "clonos.agent.task_process"],
        input=task.model_dump_json(),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    result = TaskResult.model_validate_json(done.stdout)
    assert result.ok, (result.failure, done.stderr[-3000:])
    return result.result


@pytest.mark.parametrize("store", ["hdfs", pytest.param("s3a", marks=pytest.mark.turn(9))], indirect=True)
@pytest.mark.chaos(fault="none", target="", topology="HDFS, S3: a return to a savepoint")
def test_a_job_returns_to_a_savepoint_of_a_remote_checkpoint(
    kafka: KafkaSettings, store: Store, standbys: Standbys, tmp_path: Path
) -> None:
    run = standbys.run
    assert isinstance(run, RemoteRun)
    checkpoint, kept = f"{store.url}/jobs/{run.name}", f"{store.url}/savepoints/{run.name}"
    output, counts = run.params["output"], run.params["counts"]
    feeder = Feeder(kafka, run.params["input"], 2)

    def counted(total: int) -> bool:
        newest = {message.key(): json.loads(message.value() or b"{}") for message in read_committed(kafka, counts)}
        return sum(record["count"] for record in newest.values()) == total

    def published(total: int) -> bool:
        return len(read_committed(kafka, output)) >= total

    driver = run.start()
    feeder.burst(20)
    eventually(lambda: caught_up(run, output, feeder.sent) and counted(20), "20 records are published", timeout_s=180)
    taken = host_task("savepoint", location=checkpoint, target=kept, job=run.name, sparkConf=store.conf)
    assert taken["epochs"].keys() == {"plain", "counts"}
    on_disk = tmp_path / "kept"
    host_task("savepoint", location=checkpoint, target=f"file://{on_disk}", job=run.name, sparkConf=store.conf)
    assert json.loads((on_disk / "savepoint.json").read_text())["epochs"] == taken["epochs"]
    feeder.burst(20)
    eventually(lambda: caught_up(run, output, feeder.sent) and counted(40), "40 records are published", timeout_s=120)
    driver.stop_gracefully()

    # Twice: to the savepoint, and to an epoch of the restored checkpoint itself.
    for number, (location, epoch) in enumerate([(kept, "-"), (checkpoint, str(min(taken["epochs"].values())))], 1):
        key = f"request-{number}"
        run.restore = (str(run.home / "job.yaml"), str(run.events), location, epoch, key, "publish-again")
        driver = run.start(arguments=("--new-lineage", "--request-key", key))
        expected = 40 + 20 * number
        eventually(partial(published, expected), "the later epochs are published again", timeout_s=180)
        eventually(partial(counted, 40), "all records are counted", timeout_s=60)
        driver.stop_gracefully()
        assert "counts" in store.names(f"{checkpoint}.before-{key}")
        assert "savepoint.json" in store.names(checkpoint)
    words = Published.read(kafka, output).words()
    assert words.keys() == {word for _, word in feeder.sent}
    assert store.names(f"{checkpoint}.before-request-1") == [".moved"]
    host_task("delete-savepoint", location=kept, job=run.name, sparkConf=store.conf)
    assert store.names(f"{store.url}/savepoints") == []
