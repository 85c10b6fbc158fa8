"""Brokers are killed, paused and lost during commits: the job continues by itself and publishes exactly once.

The tests run on both backends (`--kafka`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from drivers import JOBS, Driver, Feeder, JobRun, Published, caught_up, make_topics

from clonos.errors import BrokerUnavailable
from clonos.kafka import await_brokers, client_config
from clonos.log.claiming import lane_id
from clonos.log.topic import ensure_log_topic, log_topic
from clonos.settings import KafkaSettings
from clonos.testing.faults import triggered
from clonos.testing.harness import eventually, has_open_transaction
from support.brokers.interface import KafkaCluster

pytestmark = [pytest.mark.full]

StartCluster = Callable[[int], AbstractContextManager[KafkaCluster]]
EVERY_S = 0.01  # enough input for every epoch to have several rows in each lane
EPOCHS_APART = 5
UNAVAILABLE_S = 3.0
OUTAGE_S = 45.0  # longer than any single wait of the commit path


@pytest.fixture
def single_broker(start_cluster: StartCluster) -> Iterator[KafkaCluster]:
    with start_cluster(1) as cluster:
        yield cluster


@pytest.fixture
def three_brokers(start_cluster: StartCluster) -> Iterator[KafkaCluster]:
    with start_cluster(3) as cluster:
        yield cluster


@pytest.fixture
def run_on(name: str, tmp_path: Path) -> Iterator[Callable[[KafkaCluster], JobRun]]:
    """Create the job's topics on a cluster; the fixture kills all remaining drivers at the end."""
    runs: list[JobRun] = []

    def make(cluster: KafkaCluster) -> JobRun:
        topics = make_topics(cluster.kafka, input=3, output=2)
        runs.append(JobRun(cluster.kafka, name, tmp_path / "home", JOBS / "points.py", topics))
        return runs[-1]

    yield make
    for run in runs:
        run.end()


def held_at(*points: str) -> list[str]:
    """One fault for each point. Epochs without a fault separate them, so that the job recovers in between."""
    return [f"{point},epoch={2 + EPOCHS_APART * number}" for number, point in enumerate(points)]


def holding(faults: list[str]) -> str:
    return ";".join(f"{fault}:hold" for fault in faults)


def finish(run: JobRun, driver: Driver, feeder: Feeder) -> None:
    """Check that the driver still runs and has published all records once, in order; no transaction is open."""
    output = run.params["output"]
    eventually(
        lambda: not driver.running or caught_up(run, output, feeder.sent),
        "the output is complete",
        timeout_s=120,
    )
    assert driver.running, f"the driver exited:\n{driver.tail()}"
    driver.stop_gracefully()
    print(
        f"{len(run.events_of('epoch'))} epochs, restarts: {[event['what'] for event in run.events_of('restart')]}",
        flush=True,
    )
    assert Published.read(run.kafka, output).faults(feeder.sent) == {}
    eventually(lambda: not has_open_transaction(run.kafka, output), "no transaction is open")


def published_more(run: JobRun, driver: Driver, epochs: int = 3) -> None:
    """Wait until the job has finished this number of further epochs."""
    before = len(run.events_of("epoch"))
    eventually(
        lambda: not driver.running or len(run.events_of("epoch")) >= before + epochs,
        "the job continues",
        timeout_s=120,
    )
    assert driver.running, f"the driver exited:\n{driver.tail()}"


@pytest.mark.turn(10)
@pytest.mark.chaos(
    fault="SIGKILL, restart; SIGSTOP", target="the only broker; then broker and driver", topology="clonos run, 1 broker"
)
@pytest.mark.timeout(3000)
def test_a_driver_survives_broker_kills_and_pauses_during_commits(
    single_broker: KafkaCluster, run_on: Callable[[KafkaCluster], JobRun], every_point: bool
) -> None:
    """One driver survives all broker failures. Then broker and driver are killed together; a new driver continues."""
    run = run_on(single_broker)
    points = ["lane-produced", "lane-marked", "lane-committed", "epoch-committed"]
    if every_point:
        points += ["plan-committed", "determinants-acknowledged", "lane-initialised", "lane-begun", "lane-marked"]
    faults = held_at(*points)
    fatal = f"lane-marked,epoch={EPOCHS_APART * (len(faults) + 1)}"
    frozen = {faults[3]: UNAVAILABLE_S, faults[-1]: OUTAGE_S if every_point else UNAVAILABLE_S}
    with Feeder(run.kafka, run.params["input"], 3, every_s=EVERY_S) as feeder:
        driver = run.start(f"{holding(faults)};{fatal}:kill")
        for fault in faults:
            driver.await_fault(fault)
            if fault in frozen:
                single_broker.pause(0)
                driver.release(fault)
                with pytest.raises(BrokerUnavailable):
                    await_brokers(run.kafka, timeout_s=frozen[fault])
                single_broker.unpause(0)
            else:
                single_broker.kill(0)
                driver.release(fault)  # its requests reach a killed broker
                single_broker.restart(0)
        driver.await_kill()
        assert triggered(driver.faults, fatal)
        single_broker.kill(0)
        single_broker.restart(0)
        driver = run.start()
        published_more(run, driver)
    finish(run, driver, feeder)


@pytest.mark.chaos(fault="SIGKILL", target="transaction coordinator, log leader", topology="clonos run, 3 brokers")
@pytest.mark.timeout(3000)
def test_one_of_three_brokers_is_lost(three_brokers: KafkaCluster, run_on: Callable[[KafkaCluster], JobRun]) -> None:
    """The coordinator of a lane's transaction is killed; then the leader of the lane's log partition."""
    run = run_on(three_brokers)
    produced, marked = faults = ["lane-produced,lane=0,epoch=2", "lane-marked,lane=0,epoch=12"]
    with Feeder(run.kafka, run.params["input"], 3, every_s=EVERY_S) as feeder:
        driver = run.start(holding(faults))
        driver.await_fault(produced)
        lost = coordinator(run.kafka, lane_id(run.name, "plain", 0))
        three_brokers.kill(lost)
        driver.release(produced)
        published_more(run, driver)
        # A topic created while a broker is unavailable still gets three replicas.
        assert replicas(run.kafka, ensure_log_topic(run.kafka, f"{run.name}-other")) == {3}
        three_brokers.restart(lost)
        eventually(lambda: all_in_sync(run.kafka), "the lost broker has caught up", timeout_s=60)

        driver.await_fault(marked)
        lost = leader(run.kafka, log_topic(run.name), 1)
        three_brokers.kill(lost)  # for good
        driver.release(marked)
        published_more(run, driver)
    finish(run, driver, feeder)


def leader(kafka: KafkaSettings, topic: str, partition: int) -> int:
    return AdminClient(client_config(kafka)).list_topics(topic, timeout=15).topics[topic].partitions[partition].leader


def coordinator(kafka: KafkaSettings, transactional_id: str) -> int:
    """The broker that leads the transactional id's partition of `__transaction_state`."""
    topic = "__transaction_state"
    partitions = len(AdminClient(client_config(kafka)).list_topics(topic, timeout=15).topics[topic].partitions)
    value = 0
    for character in transactional_id:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return leader(kafka, topic, (value & 0x7FFFFFFF) % partitions)


def replicas(kafka: KafkaSettings, topic: str) -> set[int]:
    """The replica counts of the partitions of `topic`."""
    partitions = AdminClient(client_config(kafka)).list_topics(topic, timeout=15).topics[topic].partitions.values()
    return {len(partition.replicas) for partition in partitions}


def all_in_sync(kafka: KafkaSettings) -> bool:
    topics = AdminClient(client_config(kafka)).list_topics(timeout=15).topics.values()
    return all(len(p.isrs) == len(p.replicas) for topic in topics for p in topic.partitions.values())
