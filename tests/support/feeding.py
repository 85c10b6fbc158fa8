"""Fills topics."""

from __future__ import annotations

from confluent_kafka import Producer

from clonos.kafka import client_config
from clonos.settings import KafkaSettings


def feed_numbers(kafka: KafkaSettings, topic: str, count: int, *, partitions: int = 1) -> None:
    """Write the numbers below `count` as text, to the partitions in turn."""
    producer = Producer(client_config(kafka))
    for number in range(count):
        producer.produce(topic, f"{number}", partition=number % partitions)
    assert producer.flush(60) == 0
