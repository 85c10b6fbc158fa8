"""Kafka is away for some time: all jobs wait, and continue by themselves once it is back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest
from drivers import Feeder, Published, make_topics
from platforms import TIMEOUT_S, HostedJob, Platform

from clonos.resources.jobs import JobState
from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, has_open_transaction, read_committed
from support.brokers.interface import KafkaCluster

# `CLONOS_TEST_OUTAGE_S=600 pytest tests/chaos -k outage`: longer than every timeout of Kafka's clients.
OUTAGE_S: Final = float(os.environ.get("CLONOS_TEST_OUTAGE_S", "45"))
RETURN_S: Final = 60.0

pytestmark = [pytest.mark.embedded, pytest.mark.timeout(OUTAGE_S + 3000)]
StartCluster = Callable[[int], AbstractContextManager[KafkaCluster]]


class FedJob:
    """A job without state, and its input."""

    def __init__(self, kafka: KafkaSettings, platform: Platform, name: str, *, standbys: int) -> None:
        self._kafka, self._platform, self._name, self._standbys = kafka, platform, name, standbys
        self._topic, source = f"{name}-output", f"{name}-input"
        make_topics(kafka, **{source: 2, self._topic: 2})
        self._params = {"input": source, "output": self._topic}
        self._feeder = Feeder(kafka, source, 2)
        self._feeder.burst(20)
        self.job: HostedJob

    def submit(self) -> None:
        self.job = self._platform.submit(self._name, self._params, replicas=self._standbys)

    def feed(self) -> None:
        self._feeder.burst(20)

    def await_output(self) -> None:
        eventually(
            lambda: len(read_committed(self._kafka, self._topic)) >= len(self._feeder.sent),
            f"{self._name} publishes all records",
            timeout_s=TIMEOUT_S,
        )

    def check(self) -> None:
        """Each input once, and in order."""
        assert Published.read(self._kafka, self._topic).faults(self._feeder.sent) == {}
        eventually(lambda: not has_open_transaction(self._kafka, self._topic), "no transaction is open")


@pytest.fixture
def cluster(start_cluster: StartCluster) -> Iterator[KafkaCluster]:
    with start_cluster(3) as cluster:
        yield cluster


@pytest.mark.full
@pytest.mark.chaos(fault="SIGKILL; SIGKILL", target="all brokers; driver", topology="control plane, 2 hosts, 3 brokers")
def test_an_outage_of_kafka_needs_nobody(cluster: KafkaCluster, name: str, tmp_path: Path) -> None:
    kafka = cluster.kafka
    with Platform(tmp_path, kafka) as platform:
        platform.add("a", slots=3)
        platform.add("b", slots=3)
        jobs = [FedJob(kafka, platform, f"{name}-{number}", standbys=number == 0) for number in range(3)]
        late = FedJob(kafka, platform, f"{name}-late", standbys=0)
        for fed in jobs:
            fed.submit()
        for fed in jobs:
            fed.await_output()
        jobs[0].job.until(
            lambda: [standby for standby in jobs[0].job.standbys() if standby.state == "READY"], "its standby is READY"
        )

        for node in range(3):
            cluster.kill(node)
        away = time.monotonic()
        jobs[1].job.await_driver().kill()
        late.submit()
        for fed in jobs:
            fed.job.until(lambda fed=fed: waits(fed.job), "the job waits for Kafka", timeout_s=120)  # type: ignore[misc]
        late.job.until(lambda: waits(late.job), "the new job waits for Kafka", timeout_s=120)
        eventually(lambda: time.monotonic() - away > OUTAGE_S, "the outage has lasted", timeout_s=OUTAGE_S + 60)
        assert all(waits(fed.job) for fed in (*jobs, late)), "no job has FAILED"

        cluster.start()
        returned = time.monotonic()
        for fed in (*jobs, late):
            fed.job.until(lambda fed=fed: runs(fed.job), "the job is RUNNING", timeout_s=120)  # type: ignore[misc]
        after_s = time.monotonic() - returned
        for fed in (*jobs, late):
            fed.feed()
        for fed in (*jobs, late):
            fed.await_output()
            fed.check()
        print(f"all jobs RUNNING {after_s:.1f} s after the return of Kafka", flush=True)
        assert after_s < RETURN_S


def waits(job: HostedJob) -> bool:
    """Whether the job shows that it waits for Kafka."""
    shown = job.get()
    assert shown.state is not JobState.FAILED, shown.failure
    return shown.failure is not None and shown.failure.error == "broker-unavailable" and shown.state_deadline is None


def runs(job: HostedJob) -> bool:
    shown = job.get()
    assert shown.state is not JobState.FAILED, shown.failure
    return shown.state is JobState.RUNNING and shown.failure is None
