"""Failures on a Spark standalone cluster of real processes: executors, workers, the master and the driver.

Each test lets one task of an epoch wait, while other tasks of that epoch finish, and then ends a process. The output
must equal the input as a multiset, in order for each partition, with one answer of a service for each key.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from drivers import Feeder
from waiting import AFTER, Waiting, WaitingJobs, check_output, while_running

from clonos.embedded.standalone_spark import WorkerSize
from clonos.jobs.cluster import SECRET_VARIABLE
from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, has_open_transaction
from support.standalone import StandaloneCluster

pytestmark = [pytest.mark.timeout(3000)]

NETWORK_TIMEOUT_S: Final = 6
PADDING: Final = 8_000
_KINDS: Final = ("stateless", "stateful", "service")
# Of these jobs the driver publishes each epoch, in one transaction.
_ATOMIC: Final = ("stateful, atomic", "service, atomic")

Start = Callable[[str], tuple[Waiting[StandaloneCluster], Feeder]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    size = WorkerSize(cores=2, memory_mb=4096)  # room for the executors of a lost worker
    with StandaloneCluster(tmp_path_factory.mktemp("cluster"), size=size) as cluster:
        yield cluster
        cluster.resume_all()


@pytest.fixture
def start(
    kafka: KafkaSettings, name: str, make_topic: Callable[..., str], cluster: StandaloneCluster, tmp_path: Path
) -> Iterator[Start]:
    conf = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.network.timeout": f"{NETWORK_TIMEOUT_S}s",
        "spark.network.timeoutInterval": "2s",
        "spark.executor.heartbeatInterval": "1s",
    }
    environment = {SECRET_VARIABLE: cluster.spark.secret}
    with contextlib.ExitStack() as runs:

        def run_until_a_task_waits(kind: str) -> tuple[Waiting[StandaloneCluster], Feeder]:
            delivery = "atomic-epoch" if kind in _ATOMIC else "exactly-once"
            spec = {"master": cluster.master, "sparkConf": conf, "delivery": delivery}
            # Some tasks of an atomic epoch send their rows in parts, others in their last message.
            padding = PADDING if kind in _ATOMIC else 0
            jobs = WaitingJobs(cluster, kafka, name, make_topic, tmp_path, spec, (), environment, padding)
            run, until_a_task_waits = jobs.start(computation(kind))
            runs.callback(run.end)
            return until_a_task_waits()

        yield run_until_a_task_waits
    cluster.resume_all()


def computation(kind: str) -> str:
    """What a kind of job computes."""
    return kind.partition(",")[0]


def _kill_executor(waiting: Waiting[StandaloneCluster]) -> None:
    waiting.cluster.kill_executor(waiting.python)


def _kill_python(waiting: Waiting[StandaloneCluster]) -> None:
    os.kill(waiting.python, signal.SIGKILL)


def _kill_other_executor(waiting: Waiting[StandaloneCluster]) -> None:
    """The loss of finished map tasks, which Spark repeats by itself, while another task of their stage runs."""
    waiting.cluster.kill(waiting.other_executor())
    eventually(lambda: len(waiting.cluster.executors()) == 2, "the executor is replaced")
    waiting.release()


def _freeze_executor(waiting: Waiting[StandaloneCluster]) -> None:
    """Spark takes the executor for lost and replaces it; then the old one continues."""
    executor = waiting.cluster.executor_of(waiting.python)
    waiting.cluster.pause(executor)
    while_running(waiting.driver, lambda: waiting.restarts() > 0, "the epoch has failed, and a new owner replays it")
    waiting.release()
    waiting.cluster.resume_all()


def _lose_host(waiting: Waiting[StandaloneCluster]) -> None:
    worker = waiting.cluster.worker_of(waiting.python)
    waiting.cluster.kill_worker(worker)


FAULTS: Final = {
    "executor killed": _kill_executor,
    "Python worker killed": _kill_python,
    "executor with finished map tasks killed": _kill_other_executor,
    "executor frozen, replaced and resumed": _freeze_executor,
    "host lost: worker and executor killed": _lose_host,
}
# Every second turn has one of these cells, `make cluster-full` all cells.
_CI: Final = {("executor killed", "service"): (0, 4, 8, 12), ("executor killed", "service, atomic"): (2, 6, 10, 14)}


def _cells() -> list[object]:
    cells = []
    for fault in FAULTS:
        for kind in (*_KINDS, *_ATOMIC):
            turns = _CI.get((fault, kind))
            mark = pytest.mark.turn(*turns) if turns else pytest.mark.full
            cells.append(pytest.param(fault, kind, marks=mark, id=f"{fault}-{kind}"))
    return cells


@pytest.mark.chaos(
    fault="SIGKILL or SIGSTOP of an executor, its Python worker, its worker, or another executor",
    target="executor",
    topology="clonos run, Spark cluster",
)
@pytest.mark.parametrize(("fault", "kind"), _cells())
def test_a_process_of_the_cluster_fails(start: Start, cluster: StandaloneCluster, fault: str, kind: str) -> None:
    waiting, feeder = start(kind)
    FAULTS[fault](waiting)
    feeder.burst(AFTER)
    check_output(waiting.run, feeder, computation(kind))
    if kind != "stateless" or fault != "executor with finished map tasks killed":
        assert waiting.restarts() > 0, "the epoch failed whole"
    waiting.driver.stop_gracefully()
    eventually(lambda: not has_open_transaction(waiting.run.kafka, waiting.run.params["output"]), "none is open")
    cluster.start_missing()
    eventually(lambda: not cluster.executors(), "the application's executors have exited")


@pytest.mark.chaos(fault="SIGKILL, then restarted", target="Spark master", topology="clonos run, Spark cluster")
@pytest.mark.full
def test_a_job_continues_while_the_master_is_away(start: Start, cluster: StandaloneCluster) -> None:
    waiting, feeder = start("service")
    cluster.kill(cluster.processes["master"].pid)
    waiting.release()
    feeder.burst(AFTER)
    check_output(waiting.run, feeder, "service")
    assert waiting.restarts() == 0, "executors do not need the master"
    cluster.start("master")
    eventually(lambda: (report := cluster.spark.report()) is not None and report.workers == 2, "workers return")
    assert len(cluster.executors()) == 2, "the restarted master keeps the application"
    feeder.burst(AFTER)
    check_output(waiting.run, feeder, "service")
    assert waiting.restarts() == 0
    waiting.driver.stop_gracefully()
    eventually(lambda: not cluster.executors(), "the application's executors have exited")


@pytest.mark.chaos(fault="SIGKILL", target="driver", topology="clonos run, Spark cluster")
@pytest.mark.full
@pytest.mark.parametrize("kind", ["stateful", "service, atomic"])
def test_a_killed_driver_leaves_no_executor(start: Start, cluster: StandaloneCluster, kind: str) -> None:
    waiting, feeder = start(kind)
    executors = set(cluster.executors())
    waiting.driver.kill()
    eventually(lambda: executors.isdisjoint(cluster.executors()), "the executors have exited")
    eventually(lambda: (report := cluster.spark.report()) is not None and not report.applications, "the slots are free")
    feeder.burst(AFTER)
    driver = waiting.run.start(environment={SECRET_VARIABLE: cluster.spark.secret})
    check_output(waiting.run, feeder, computation(kind))
    driver.stop_gracefully()
