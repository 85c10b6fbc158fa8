"""Clients that a standby opens in advance continue to work after a broker restart."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from confluent_kafka import Producer
from drivers import make_topics

from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos_connectors.kafka import KafkaSource
from support.brokers.interface import KafkaCluster


@pytest.mark.chaos(fault="SIGKILL, restart", target="the only broker", topology="one client, 1 broker")
def test_a_source_reads_offsets_after_a_broker_restart(
    start_cluster: Callable[[int], AbstractContextManager[KafkaCluster]], name: str
) -> None:
    with start_cluster(1) as cluster:
        make_topics(cluster.kafka, **{name: 1})
        source = KafkaSource((name,))
        produce(cluster.kafka, name)
        source.check_retained(cluster.kafka, {name: {0: 1}})
        cluster.kill(0)
        cluster.restart(0)
        produce(cluster.kafka, name)  # succeeds once the partition has a leader again
        source.check_retained(cluster.kafka, {name: {0: 2}})


def produce(kafka: KafkaSettings, topic: str) -> None:
    producer = Producer(client_config(kafka))
    producer.produce(topic, b"one", partition=0)
    assert producer.flush(30) == 0
