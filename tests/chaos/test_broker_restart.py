"""Clients that outlive a broker's leadership: in a standby's sources and in a driver's watches."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from drivers import make_topics

from clonos.driver.lag import LagMeter
from clonos.errors import BrokerUnavailable
from clonos.kafka import await_brokers, client_config
from clonos.partition_offsets import OffsetClient
from clonos.settings import KafkaSettings
from clonos.testing.harness import ChildProcess, eventually
from clonos_connectors.kafka import KafkaSource
from support.brokers.embedded import EmbeddedCluster
from support.brokers.interface import KafkaCluster
from support.event_fields import into

StartCluster = Callable[[int], AbstractContextManager[KafkaCluster]]
_SESSION_MS = 2_000
_PAUSE_S = 2.5  # longer than the broker's session, and than an answer that the watches wait for (1.5 s)
_PAUSES = 40


@pytest.mark.chaos(fault="SIGKILL, restart", target="the only broker", topology="one client, 1 broker")
def test_offsets_are_read_after_a_broker_restart(start_cluster: StartCluster, name: str) -> None:
    """librdkafka keeps the leader epochs of before the restart, which the broker refuses."""
    reports: list[dict[str, Any]] = []
    with start_cluster(1) as cluster:
        make_topics(cluster.kafka, **{name: 1})
        source, offsets = KafkaSource((name,)), OffsetClient(cluster.kafka)
        meter = LagMeter(OffsetClient(cluster.kafka), into(reports))
        meter.note_start("query", {name: {0: 0}})
        produce(cluster.kafka, name)
        source.check_retained(cluster.kafka, {name: {0: 1}})
        partitions = offsets.partitions(name)
        assert offsets.ends(partitions) == {(name, 0): 1}
        meter.poll_once()
        cluster.kill(0)
        with pytest.raises(BrokerUnavailable):
            offsets.ends(partitions)
        meter.poll_once()
        assert [report["topics"] for report in reports] == [{name: 1}], (
            "nothing is reported about a broker that does not answer"
        )
        cluster.restart(0)
        produce(cluster.kafka, name)  # succeeds once the partition has a leader again
        source.check_retained(cluster.kafka, {name: {0: 2}})
        assert offsets.bounds(partitions) == ({(name, 0): 0}, {(name, 0): 2})
        meter.poll_once()
        assert [report["topics"] for report in reports[1:]] == [{name: 2}]


@pytest.mark.turn(2, 6, 10, 14)
@pytest.mark.chaos(fault="SIGSTOP, restart", target="the only broker", topology="a driver's watches, 1 broker")
def test_the_watches_survive_an_answer_without_brokers(name: str, tmp_path: Path) -> None:
    """A broker whose controller has just lost it answers with an empty list, which aborts some of librdkafka's
    requests. It happens after about every fifth pause.
    """
    program = Path(__file__).parent / "programs" / "watching.py"
    cluster = EmbeddedCluster(tmp_path / "kafka", session_ms=_SESSION_MS)
    with ExitStack() as ending:
        cluster.start()
        ending.callback(cluster.stop)
        make_topics(cluster.kafka, **{name: 1})
        environment = {"CLONOS_KAFKA__BOOTSTRAP_SERVERS": cluster.kafka.bootstrap_servers}
        watching = ChildProcess([sys.executable, str(program), name], environment, tmp_path / "log")
        try:
            answered = await_answers(watching, 0)
            with EmptyAnswers(cluster.kafka, name) as empty:
                for _ in range(_PAUSES):
                    cluster.pause(0)
                    with pytest.raises(BrokerUnavailable):
                        await_brokers(cluster.kafka, timeout_s=_PAUSE_S)
                    cluster.unpause(0)
                    answered = await_answers(watching, answered)
                    if empty.count:
                        break
            assert empty.count, "no answer was empty"
            cluster.kill(0)
            cluster.restart(0)
            await_answers(watching, answered)
            assert watching.stop() == 0, watching.tail()
        finally:
            watching.kill()


class EmptyAnswers:
    """Counts the answers to metadata requests that list no broker, in a thread."""

    def __init__(self, kafka: KafkaSettings, topic: str) -> None:
        self.count = 0
        self._admin = AdminClient(client_config(kafka))
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> EmptyAnswers:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.002):
            with suppress(KafkaException):
                self.count += not self._admin.list_topics(self._topic, timeout=1).brokers


def await_answers(watching: ChildProcess, before: int) -> int:
    """Wait until the watches have reported an answer of Kafka more than `before` times; returns how often they have."""

    def reports() -> int:
        assert watching.running, f"exit code {watching.exit_code}:\n{watching.tail()}"
        count = watching.log.read_text().count('"silent_since":null')
        return count if count > before else 0

    return eventually(reports, "the watches report an answer", timeout_s=60, details=watching.tail)


def produce(kafka: KafkaSettings, topic: str) -> None:
    producer = Producer(client_config(kafka))
    producer.produce(topic, b"one", partition=0)
    assert producer.flush(30) == 0
