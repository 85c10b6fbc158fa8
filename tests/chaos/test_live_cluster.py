"""A live query on a Spark standalone cluster of real processes: its executors and its driver fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from drivers import JOBS, SUPERSEDED, Driver, Feeder, JobRun, Published, caught_up
from standbys import Standbys
from waiting import while_running

from clonos.audit.output_audit import audit_output
from clonos.embedded.standalone_spark import WorkerSize
from clonos.jobs.cluster import SECRET_VARIABLE
from clonos.log.control import known_control
from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, has_open_transaction
from support.standalone import StandaloneCluster

pytestmark = [pytest.mark.timeout(1200)]

PARTITIONS: Final = 3
LANES: Final = 3  # of each task
_CI: Final = pytest.mark.turn(1, 5, 9, 13)  # `test_cluster_failures.py` has the other turns


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    size = WorkerSize(cores=2, memory_mb=4096)  # room for the executors of a lost worker
    with StandaloneCluster(tmp_path_factory.mktemp("cluster"), size=size) as cluster:
        yield cluster
        cluster.resume_all()


class LiveRun:
    """A live query on two executors."""

    def __init__(self, cluster: StandaloneCluster, run: JobRun) -> None:
        self.cluster = cluster
        self.run = run

    def start(self) -> Driver:
        """Start a driver, and wait until its query has published a step."""
        before = len(self.run.events_of("epoch"))
        driver = self.run.start()
        while_running(driver, lambda: len(self.run.events_of("epoch")) > before, "the query publishes")
        return driver

    def lanes(self) -> int:
        """The number of lanes of the newest planned epoch."""
        state = known_control(self.run.kafka, self.run.name)
        plan = state.plan("out", state.newest_plan("out")) if state is not None else None
        return len(plan.log_partitions) if plan is not None else 0

    def await_claims(self, driver: Driver, number: int) -> None:
        while_running(driver, lambda: len(self.run.events_of("claimed")) >= number, "the job is claimed again")

    def await_output(self, driver: Driver, feeder: Feeder, sent: int | None = None) -> None:
        """Wait until the first records, by default all, are published."""
        due = feeder.sent[:sent] if sent is not None else list(feeder.sent)
        while_running(driver, lambda: caught_up(self.run, self.run.params["output"], due), "the input is published")


@pytest.fixture
def live(
    kafka: KafkaSettings,
    name: str,
    make_topic: Callable[..., str],
    cluster: StandaloneCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[LiveRun]:
    monkeypatch.setenv(SECRET_VARIABLE, cluster.spark.secret)
    params = {"input": make_topic(PARTITIONS, "in"), "output": make_topic(2, "out"), "python": "true"}
    conf = {"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2"}
    spec = {"master": cluster.master, "sparkConf": conf, "trigger": {"mode": "live"}}
    run = JobRun(kafka, name, tmp_path / "home", JOBS / "live.py", params, spec)
    yield LiveRun(cluster, run)
    run.end()
    cluster.resume_all()
    cluster.start_missing()
    eventually(lambda: not cluster.executors(), "the application's executors have exited")


def _kill_executor(live: LiveRun, driver: Driver, feeder: Feeder) -> Driver:
    live.cluster.kill(live.cluster.executors()[0])
    live.await_claims(driver, 2)
    eventually(lambda: live.lanes() == 2 * LANES, "the next executor has a task")
    return driver


def _lose_host(live: LiveRun, driver: Driver, feeder: Feeder) -> Driver:
    """No other executor takes the lost tasks: the one that is left reads all partitions."""
    for worker in ("worker-1", "master"):
        live.cluster.kill_worker(worker)
    live.await_claims(driver, 2)
    eventually(lambda: live.lanes() == LANES, "an epoch with one task is planned")
    return driver


def _freeze_executor(live: LiveRun, driver: Driver, feeder: Feeder) -> Driver:
    """It continues when a newer epoch publishes."""
    live.cluster.pause(live.cluster.executors()[0])
    live.await_claims(driver, 2)
    live.await_output(driver, feeder)
    live.cluster.resume_all()
    return driver


def _kill_driver(live: LiveRun, driver: Driver, feeder: Feeder) -> Driver:
    driver.kill()
    return live.start()


def _pause_driver(live: LiveRun, driver: Driver, feeder: Feeder) -> Driver:
    """A standby with executors of its own takes over; then the former driver and its executors continue."""
    former = live.cluster.executors()
    standbys = Standbys(live.run)
    standby, pipe = standbys.start_ready()
    eventually(lambda: "is parked" in standby.tail(200), "its query is parked", timeout_s=90)
    generation = standbys.generation()
    driver.pause()
    for executor in former:
        live.cluster.pause(executor)
    standbys.promote(pipe)
    standbys.await_epoch_of(standby, generation + 1)
    live.cluster.resume_all()
    driver.resume()
    assert driver.wait() == SUPERSEDED, driver.tail()
    return standby


FAULTS: Final = {
    "executor killed": _kill_executor,
    "host and master lost": _lose_host,
    "executor frozen and resumed": _freeze_executor,
    "driver killed": _kill_driver,
    "driver and executors paused until a standby publishes": _pause_driver,
}


@pytest.mark.chaos(
    fault="SIGKILL; SIGSTOP, resumed after a new epoch began",
    target="executor; its host and the master; driver; driver and executors",
    topology="clonos run, live, Spark cluster",
)
@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=_CI if fault == "executor killed" else pytest.mark.full) for fault in FAULTS],
)
def test_a_live_query_on_a_cluster_survives(live: LiveRun, fault: str) -> None:
    """Its function is in Python. Each of the two executors publishes the records of its own partitions."""
    run = live.run
    with Feeder(run.kafka, run.params["input"], PARTITIONS, every_s=0.01) as feeder:
        driver = live.start()
        eventually(lambda: live.lanes() == 2 * LANES, "each executor has a task")
        live.await_output(driver, feeder, 100)
        driver = FAULTS[fault](live, driver, feeder)
        live.await_output(driver, feeder)
    live.await_output(driver, feeder)
    assert Published.read(run.kafka, run.params["output"]).faults(feeder.sent) == {}
    driver.stop_gracefully()
    assert Published.read(run.kafka, run.params["output"]).faults(feeder.sent) == {}
    epochs = run.events_of("epoch")
    assert sum(event["records_out"] for event in epochs) <= len(feeder.sent)
    eventually(lambda: not has_open_transaction(run.kafka, run.params["output"]), "no transaction is open")


@pytest.mark.chaos(
    fault="another Spark job occupies a slot", target="executor", topology="clonos run, live, Spark cluster"
)
@pytest.mark.full
def test_partitions_of_a_task_without_a_slot_are_read_by_another_task(live: LiveRun) -> None:
    run = live.run
    run.params = {**run.params, "occupied": "120"}
    with Feeder(run.kafka, run.params["input"], PARTITIONS, every_s=0.05) as feeder:
        driver = live.start()
        live.await_output(driver, feeder)
        assert live.lanes() == LANES, "the second epoch has one task"
        assert "1 of 2 live tasks have no slot" in driver.tail(400)
    live.await_output(driver, feeder)
    driver.stop_gracefully()
    assert Published.read(run.kafka, run.params["output"]).faults(feeder.sent) == {}
    assert not run.events_of("restart")


@pytest.mark.chaos(
    fault="stopped, then started with another master", target="driver", topology="clonos run, live, Spark cluster"
)
@pytest.mark.full
def test_a_live_query_moves_between_a_cluster_and_a_local_master(live: LiveRun) -> None:
    """Each start continues behind the greatest markers, with lanes of its own; the figures count each record once."""
    run = live.run
    on_cluster, local = run.spec, {**run.spec, "master": "local[2]", "sparkConf": {}}
    feeder = Feeder(run.kafka, run.params["input"], PARTITIONS)
    for spec, lanes in ((on_cluster, 2 * LANES), (local, LANES), (on_cluster, 2 * LANES)):
        run.spec = spec
        feeder.burst(50)
        driver = live.start()
        assert live.lanes() == lanes
        for _ in range(3):
            feeder.burst(30)
            live.await_output(driver, feeder)
        driver.stop_gracefully()
        assert Published.read(run.kafka, run.params["output"]).faults(feeder.sent) == {}
    epochs = run.events_of("epoch")
    assert sum(event["records_in"] for event in epochs) == len(feeder.sent)
    assert sum(event["records_out"] for event in epochs) == len(feeder.sent)
    assert sum(sum(event["latencies"].values()) for event in epochs) == len(feeder.sent)
    assert epochs[-1]["offsets"] == {run.params["input"]: {str(number): 140 for number in range(PARTITIONS)}}
    assert {event["epoch"] for event in epochs} == {0, 1, 2}
    result = audit_output(run.kafka, run.name, seconds=1)
    assert result.clean, result
    assert result.records == len(feeder.sent)
    assert not run.events_of("restart")
