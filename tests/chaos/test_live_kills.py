"""Kill and pause drivers of a live query at each point of a step, and at random times: nothing is lost or repeated."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest
from drivers import JOBS, SUPERSEDED, Driver, Feeder, JobRun, Published, caught_up, make_topics
from standbys import Standbys

from clonos.faults import STEP_POINTS
from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, has_open_transaction
from support.brokers.interface import KafkaCluster

LIVE = {"trigger": {"mode": "live"}}


@pytest.fixture
def run(kafka: KafkaSettings, name: str, make_topic: Callable[..., str], tmp_path: Path) -> Iterator[JobRun]:
    params = {"input": make_topic(3, "in"), "output": make_topic(2, "out")}
    run = JobRun(kafka, name, tmp_path / "home", JOBS / "live.py", params, LIVE)
    yield run
    run.end()


@pytest.mark.turn(6, 14)
@pytest.mark.chaos(fault="SIGKILL, SIGSTOP", target="driver, twice", topology="clonos run --standby, live")
@pytest.mark.timeout(3000)
def test_a_standby_takes_a_live_query_over(kafka: KafkaSettings, run: JobRun) -> None:
    """The query has a function in Python. The second takeover meets an epoch that a parked query began. The driver that
    was paused comes back.
    """
    run.params = {**run.params, "python": "true"}
    standbys = Standbys(run)
    primary = run.start()
    with Feeder(kafka, run.params["input"], 3, every_s=0.01) as feeder:
        for leave in (Driver.kill, Driver.pause):
            standby, pipe = standbys.start_ready()
            eventually(lambda: len(run.events_of("epoch")) > 0, "the driver publishes", timeout_s=90)
            eventually(lambda log=standby: "is parked" in log.tail(200), "its query is parked", timeout_s=90)
            generation = standbys.generation()
            leave(primary)
            standbys.promote(pipe)
            standbys.await_epoch_of(standby, generation + 1)
            assert not run.events_of("restart")
            former, primary = primary, standby
        resumed(former)
    eventually(lambda: caught_up(run, run.params["output"], feeder.sent), "the output is complete", timeout_s=90)
    primary.stop_gracefully()
    assert Published.read(kafka, run.params["output"]).faults(feeder.sent) == {}


def resumed(zombie: Driver) -> None:
    zombie.resume()
    assert zombie.wait() == SUPERSEDED, zombie.tail()


@pytest.mark.turn(2, 10)
@pytest.mark.chaos(
    fault="SIGKILL, SIGSTOP in a step, SIGKILL at any time", target="driver", topology="clonos run, live"
)
@pytest.mark.timeout(3000)
def test_a_live_query_survives_kills(
    kafka: KafkaSettings, run: JobRun, every_point: bool, moments: random.Random
) -> None:
    output = run.params["output"]
    killed = [f"{point},lane={number % 3}" for number, point in enumerate(STEP_POINTS)]
    with Feeder(kafka, run.params["input"], 3, every_s=0.01) as feeder:
        for fault in killed if every_point else killed[1:3]:
            print("killing at", fault, flush=True)
            driver = run.start(f"{fault}:kill")
            driver.await_fault(fault)
            driver.await_kill()
        zombie: Driver | None = None
        for point in STEP_POINTS if every_point else STEP_POINTS[2:3]:
            print("stopping at", point, flush=True)
            fault = f"{point},lane=1"
            driver = run.start(f"{fault}:stop")
            driver.await_fault(fault)
            if zombie is not None:
                resumed(zombie)
            zombie = driver
        for _ in range(20 if every_point else 2):
            claims = len(run.events_of("claimed"))
            driver = run.start()
            eventually(lambda n=claims: len(run.events_of("claimed")) > n, "it claims", timeout_s=90)
            if zombie is not None:
                resumed(zombie)
                zombie = None
            time.sleep(moments.uniform(0.0, 3.0))  # the moment of the kill is the input of this test
            driver.kill()
        last = run.start()
        eventually(
            lambda: len(run.events_of("epoch")) > 0 and caught_up(run, output, feeder.sent[:-50]),
            "it publishes",
            timeout_s=90,
        )
    eventually(lambda: caught_up(run, output, feeder.sent), "the output is complete", timeout_s=90)
    last.stop_gracefully()
    assert Published.read(kafka, output).faults(feeder.sent) == {}
    eventually(lambda: not has_open_transaction(kafka, output), "no transaction is open", timeout_s=60)


@pytest.mark.full
@pytest.mark.chaos(fault="SIGKILL at random moments", target="drivers", topology="clonos run, live: two jobs")
@pytest.mark.timeout(6000)
def test_live_jobs_survive_random_kills(
    kafka: KafkaSettings,
    name: str,
    make_topic: Callable[..., str],
    tmp_path: Path,
    moments: random.Random,
    pytestconfig: pytest.Config,
) -> None:
    """`--kills` of each job, at moments that `--seed` decides; each second time after the driver has published. One of
    the jobs calls a service.
    """
    kills, topic = pytestconfig.getoption("--kills"), make_topic(3, "in")
    runs = [
        JobRun(kafka, f"{name}-{kind}", tmp_path / kind, JOBS / "live.py", params, LIVE)
        for kind, more in {"plain": {}, "service": {"python": "true"}}.items()
        for params in [{"input": topic, "output": make_topic(2, f"out-{kind}"), **more}]
    ]
    try:
        with Feeder(kafka, topic, 3, every_s=0.01) as feeder:
            for number in range(kills):
                event = ("claimed", "epoch")[number % 2]
                drivers = [(run, len(run.events_of(event)), run.start()) for run in runs]
                for run, before, driver in drivers:
                    awaited(run, driver, event, before)
                    time.sleep(moments.uniform(0.0, 2.0))  # the moment of the kill is the input of this test
                    assert driver.running, driver.tail()
                    driver.kill()
            last = [run.start() for run in runs]
            for run, driver in zip(runs, last, strict=True):
                awaited(run, driver, "epoch", len(run.events_of("epoch")))
        for run, driver in zip(runs, last, strict=True):
            exact(run, driver, feeder.sent, kills)
    finally:
        for run in runs:
            run.end()


def exact(run: JobRun, driver: Driver, sent: list[tuple[int, str]], kills: int) -> None:
    """Stop the last driver of a job when its output is complete; the output is that of the records that were sent."""
    output = run.params["output"]
    eventually(lambda: caught_up(run, output, sent), "the output is complete", timeout_s=90)
    driver.stop_gracefully()
    published = Published.read(run.kafka, output)
    found = published.faults(sent)
    counts = {kind: len(examples) for kind, examples in found.items()}
    print(f"{kills} kills, {len(sent)} records sent, {len(published.records)} published, faults: {counts}", flush=True)
    assert found == {}
    assert len(run.events_of("claimed")) == kills + 1
    eventually(lambda: not has_open_transaction(run.kafka, output), "no transaction is open", timeout_s=60)


def awaited(run: JobRun, driver: Driver, event: str, before: int) -> None:
    """Wait until there are more events of a kind than `before`."""
    eventually(lambda: len(run.events_of(event)) > before or not driver.running, event, timeout_s=120)
    assert driver.running, driver.tail()


@pytest.mark.turn(2, 10)
@pytest.mark.chaos(fault="none", target="", topology="clonos run, live: fewer task slots than cores")
def test_a_backlog_is_read_with_no_more_tasks_than_slots(kafka: KafkaSettings, run: JobRun) -> None:
    """Spark never reads the partitions of a live task that waits for a slot. Here a task takes both cores."""
    run.spec = {**LIVE, "sparkConf": {"spark.task.cpus": "2", "spark.default.parallelism": "8"}}
    feeder = Feeder(kafka, run.params["input"], 3)
    feeder.burst(21_000)
    driver = run.start()
    eventually(
        lambda: caught_up(run, run.params["output"], feeder.sent) or not driver.running, "the partitions are read"
    )
    driver.stop_gracefully()
    assert Published.read(kafka, run.params["output"]).faults(feeder.sent) == {}


def workers(driver: Driver) -> list[psutil.Process]:
    """The processes that run functions in Python; their daemon starts them."""
    members = {process.pid: process for process in driver.members()}
    daemons = [pid for pid, process in members.items() if "clonos.spark.daemon" in process.cmdline()]
    return [members[pid] for pid in daemons if members[pid].ppid() in daemons]


def published_more(run: JobRun, driver: Driver) -> None:
    before = len(run.events_of("epoch"))
    eventually(lambda: not driver.running or len(run.events_of("epoch")) > before, "the job continues", timeout_s=120)
    assert driver.running, driver.tail()


@pytest.mark.full
@pytest.mark.chaos(
    fault="SIGKILL; SIGKILL, restart; SIGSTOP beyond the transaction timeout",
    target="Python worker; the only broker; driver",
    topology="clonos run, live, 1 broker",
)
@pytest.mark.timeout(3000)
def test_a_live_driver_survives_lost_workers_brokers_and_transactions(
    start_cluster: Callable[[int], AbstractContextManager[KafkaCluster]], name: str, tmp_path: Path
) -> None:
    """One driver survives all of them, and its query continues at the newest marker."""
    points = [f"{point},lane={number % 3}" for number, point in enumerate(STEP_POINTS)]
    with start_cluster(1) as cluster:
        topics = make_topics(cluster.kafka, input=3, output=2)
        run = JobRun(cluster.kafka, name, tmp_path / "home", JOBS / "live.py", {**topics, "python": "true"}, LIVE)
        try:
            with Feeder(cluster.kafka, topics["input"], 3, every_s=0.01) as feeder:
                driver = run.start(";".join(f"{point}:hold" for point in points))
                while points:
                    point = eventually(
                        lambda: next(filter(driver.triggered, points), ""), f"one of {points}", timeout_s=120
                    )
                    points.remove(point)
                    cluster.kill(0)
                    driver.release(point)  # its requests reach a killed broker
                    cluster.restart(0)
                for _ in range(3):
                    published_more(run, driver)
                    killed = eventually(lambda: workers(driver), "a worker runs", timeout_s=60)
                    for worker in killed:
                        worker.kill()
                published_more(run, driver)
                driver.stop_gracefully()
                stopped = "step-produced,lane=1"
                driver = run.start(f"{stopped}:stop")
                driver.await_fault(stopped)
                eventually(
                    lambda: not has_open_transaction(cluster.kafka, topics["output"]),
                    "the broker aborts the transaction",
                    timeout_s=60,
                )
                driver.resume()
                published_more(run, driver)
            eventually(lambda: caught_up(run, topics["output"], feeder.sent), "the output is complete", timeout_s=90)
            driver.stop_gracefully()
            assert Published.read(cluster.kafka, topics["output"]).faults(feeder.sent) == {}
        finally:
            run.end()
