"""Brokers killed, frozen and lost in the middle of commits: the job goes on by itself, exactly once.

They run on both backends (`--kafka`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from drivers import JOBS, Driver, Feeder, JobRun, Published, caught_up, make_topics

from brokers.interface import KafkaCluster
from clonos.errors import BrokerUnavailable
from clonos.kafka import await_brokers, client_config
from clonos.log.claiming import lane_id
from clonos.log.topic import ensure_log_topic, log_topic
from clonos.settings import KafkaSettings
from observe import ends_agree, eventually, touched

pytestmark = [pytest.mark.chaos, pytest.mark.broad]

StartCluster = Callable[[int], AbstractContextManager[KafkaCluster]]
EVERY_S = 0.01  # enough input for every epoch to have several rows in each lane
EPOCHS_APART = 5
UNAVAILABLE_S = 3.0
OUTAGE_S = 45.0  # longer than any single wait of the commit path


@pytest.fixture
def one(start_cluster: StartCluster) -> Iterator[KafkaCluster]:
    with start_cluster(1) as cluster:
        yield cluster


@pytest.fixture
def three(start_cluster: StartCluster) -> Iterator[KafkaCluster]:
    with start_cluster(3) as cluster:
        yield cluster


@pytest.fixture
def run_on(name: str, tmp_path: Path) -> Iterator[Callable[[KafkaCluster], JobRun]]:
    """Makes the job's topics on a cluster; whatever still runs at the end is killed."""
    runs: list[JobRun] = []

    def make(cluster: KafkaCluster) -> JobRun:
        topics = make_topics(cluster.kafka, input=3, output=2)
        runs.append(JobRun(cluster.kafka, name, tmp_path / "home", JOBS / "points.py", topics))
        return runs[-1]

    yield make
    for run in runs:
        run.end()


def held_at(*points: str) -> list[str]:
    """One fault for each point, each in an epoch of its own, so that the job is at work again in between."""
    return [f"{point},epoch={2 + EPOCHS_APART * number}" for number, point in enumerate(points)]


def holding(faults: list[str]) -> str:
    return ";".join(f"{fault}:hold" for fault in faults)


def finish(run: JobRun, driver: Driver, feeder: Feeder) -> None:
    """The one driver is still there and has published everything once and in order; nothing is left open."""
    output = run.params["output"]
    eventually(
        lambda: driver.process.poll() is not None or caught_up(run, output, feeder.sent),
        "the output is complete",
        timeout_s=120,
    )
    assert driver.process.poll() is None, f"the driver ended:\n{driver.tail()}"
    driver.stop()
    print(f"{len(run.told('epoch'))} epochs, restarts: {[told['what'] for told in run.told('restart')]}", flush=True)
    assert Published.read(run.kafka, output).faults(feeder.sent) == {}
    eventually(lambda: ends_agree(run.kafka, output), "no transaction is open")


def published_more(run: JobRun, driver: Driver, epochs: int = 3) -> None:
    """Wait until the job has finished some epochs from now on."""
    before = len(run.told("epoch"))
    eventually(
        lambda: driver.process.poll() is not None or len(run.told("epoch")) >= before + epochs,
        "the job goes on",
        timeout_s=120,
    )
    assert driver.process.poll() is None, f"the driver ended:\n{driver.tail()}"


@pytest.mark.timeout(900)
def test_broker_killed_and_frozen_in_the_middle_of_commits(
    one: KafkaCluster, run_on: Callable[[KafkaCluster], JobRun], every_point: bool
) -> None:
    """One driver goes on through it all; in the end both die together, as in a power failure, and a new one goes on."""
    run = run_on(one)
    points = ["lane-produced", "lane-marked", "lane-committed", "end-committed"]
    if every_point:
        points += ["plan-committed", "determinants-acknowledged", "lane-initialised", "lane-begun", "lane-marked"]
    faults = held_at(*points)
    fatal = f"lane-marked,epoch={EPOCHS_APART * (len(faults) + 1)}"
    frozen = {faults[3]: UNAVAILABLE_S, faults[-1]: OUTAGE_S if every_point else UNAVAILABLE_S}
    with Feeder(run.kafka, run.params["input"], 3, every_s=EVERY_S) as feeder:
        driver = run.start(f"{holding(faults)};{fatal}:kill")
        for fault in faults:
            driver.reached(fault)
            if fault in frozen:
                one.pause(0)
                driver.go_on(fault)
                with pytest.raises(BrokerUnavailable):
                    await_brokers(run.kafka, timeout_s=frozen[fault])
                one.unpause(0)
            else:
                one.kill(0)
                driver.go_on(fault)  # into a broker that is gone
                one.restart(0)
        driver.died()
        assert touched(driver.faults, fatal)
        one.kill(0)
        one.restart(0)
        driver = run.start()
        published_more(run, driver)
    finish(run, driver, feeder)


@pytest.mark.story
@pytest.mark.timeout(600)
def test_one_of_three_brokers_is_lost(three: KafkaCluster, run_on: Callable[[KafkaCluster], JobRun]) -> None:
    """Lost in turn: the coordinator of a lane's transaction, and the leader of its part of the log."""
    run = run_on(three)
    produced, marked = faults = ["lane-produced,lane=0,epoch=2", "lane-marked,lane=0,epoch=12"]
    with Feeder(run.kafka, run.params["input"], 3, every_s=EVERY_S) as feeder:
        driver = run.start(holding(faults))
        driver.reached(produced)
        lost = coordinator(run.kafka, lane_id(run.name, "plain", 0))
        three.kill(lost)
        driver.go_on(produced)
        published_more(run, driver)
        # What is made while a broker is away has its replicas all the same.
        assert replicas(run.kafka, ensure_log_topic(run.kafka, f"{run.name}-other")) == {3}
        three.restart(lost)
        eventually(lambda: all_in_sync(run.kafka), "the lost broker has caught up", timeout_s=60)

        driver.reached(marked)
        lost = leader(run.kafka, log_topic(run.name), 1)
        three.kill(lost)  # for good
        driver.go_on(marked)
        published_more(run, driver)
    finish(run, driver, feeder)


def leader(kafka: KafkaSettings, topic: str, partition: int) -> int:
    return AdminClient(client_config(kafka)).list_topics(topic, timeout=15).topics[topic].partitions[partition].leader


def coordinator(kafka: KafkaSettings, transactional_id: str) -> int:
    """The broker that leads the partition which Kafka's hash gives the transactional id."""
    topic = "__transaction_state"
    partitions = len(AdminClient(client_config(kafka)).list_topics(topic, timeout=15).topics[topic].partitions)
    value = 0
    for character in transactional_id:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return leader(kafka, topic, (value & 0x7FFFFFFF) % partitions)


def replicas(kafka: KafkaSettings, topic: str) -> set[int]:
    """How many replicas the partitions of `topic` have."""
    found = AdminClient(client_config(kafka)).list_topics(topic, timeout=15).topics[topic].partitions.values()
    return {len(partition.replicas) for partition in found}


def all_in_sync(kafka: KafkaSettings) -> bool:
    topics = AdminClient(client_config(kafka)).list_topics(timeout=15).topics.values()
    return all(len(p.isrs) == len(p.replicas) for topic in topics for p in topic.partitions.values())
