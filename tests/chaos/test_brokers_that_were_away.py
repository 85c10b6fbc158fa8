"""Clients that are kept for the moment of a takeover go on after a broker was started again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from confluent_kafka import Producer
from drivers import make_topics

from brokers.interface import KafkaCluster
from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos_connectors.kafka import KafkaSource

pytestmark = pytest.mark.chaos


def test_a_source_is_asked_for_its_offsets(
    start_cluster: Callable[[int], AbstractContextManager[KafkaCluster]], name: str
) -> None:
    with start_cluster(1) as cluster:
        make_topics(cluster.kafka, **{name: 1})
        source = KafkaSource((name,))
        produce(cluster.kafka, name)
        source.check_retained(cluster.kafka, {name: {0: 1}})
        cluster.kill(0)
        cluster.restart(0)
        produce(cluster.kafka, name)  # so the partition has its leader again
        source.check_retained(cluster.kafka, {name: {0: 2}})


def produce(kafka: KafkaSettings, topic: str) -> None:
    producer = Producer(client_config(kafka))
    producer.produce(topic, b"one", partition=0)
    assert producer.flush(30) == 0
