"""What tests observe from outside: topics as a read_committed reader sees them, effects that come in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from clonos.kafka import client_config
from clonos.settings import KafkaSettings

_SHOWN_S = 1.0


def read_committed(kafka: KafkaSettings, topic: str) -> list[Message]:
    """Everything that a read_committed reader of `topic` sees, by partition and offset.

    A broker shows a commit a moment after it confirmed it: that moment is waited for. What stays open is not seen.
    """
    deadline = time.monotonic() + _SHOWN_S
    while not ends_agree(kafka, topic) and time.monotonic() < deadline:
        time.sleep(0.01)
    consumer = Consumer(
        client_config(
            kafka,
            fetch_wait_max_ms=5,
            group_id="tests",
            isolation_level="read_committed",
            enable_partition_eof=True,
            enable_auto_commit=False,
        )
    )
    try:
        partitions = consumer.list_topics(topic, timeout=15).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        found: list[Message] = []
        ended: set[int | None] = set()
        deadline = time.monotonic() + 30
        while len(ended) < len(partitions):
            assert time.monotonic() < deadline, f"{topic} did not end"
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
        return sorted(found, key=lambda message: (message.partition() or 0, message.offset() or 0))
    finally:
        consumer.close()


def eventually(condition: Callable[[], Any], what: str, *, timeout_s: float = 30.0) -> Any:
    """Poll until `condition` answers something true; for effects outside of this process."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.02)


def touched(path: Path, text: str) -> bool:
    """Whether the file `path` holds the line `text`."""
    return path.exists() and text in path.read_text().splitlines()


def ends_agree(kafka: KafkaSettings, topic: str) -> bool:
    """Whether no transaction is open on `topic`: the stable end is the end."""
    ends = []
    for level in ("read_committed", "read_uncommitted"):
        consumer = Consumer(client_config(kafka, group_id="ends", isolation_level=level))
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        ends.append([consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in partitions])
        consumer.close()
    return ends[0] == ends[1]
