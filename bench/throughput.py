"""Rows per second, memory and CPU of whole jobs on the same input."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from bench.progress import log_progress
from bench.spark_cluster import BenchCluster
from bench.subjects import PARTITIONS, Subject, make_topic, running_driver
from clonos.kafka import client_config
from clonos.settings import KafkaSettings

_KEYS = 1000
_DONE_S = 600.0


def preload(kafka: KafkaSettings, records: int) -> str:
    """A topic of `records` JSON records of 80 bytes, 1,000 keys in each of four partitions.

    Returns:
        Its name.
    """
    topic = make_topic(kafka, "load")
    producer = Producer(client_config(kafka, linger_ms=50, batch_size=500_000, queue_buffering_max_messages=1_000_000))
    draw = random.Random(7)
    for number in range(records):
        key = f"k{draw.randrange(_KEYS)}"
        value = json.dumps({"id": number, "key": key, "amount": draw.randrange(10**6)}).encode().ljust(80)
        while True:
            try:
                producer.produce(topic, value, key, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise TimeoutError("the input could not be written")
    log_progress(f"{records} records are in {topic}")
    return topic


@dataclass(frozen=True)
class Rate:
    """Of one run, its first epoch (classes, code generation) left out."""

    rows_per_s: float
    cpu_us_per_row: float
    peak_pss_mb: float


def rate(
    subject: Subject,
    kafka: KafkaSettings,
    home: Path,
    source: str,
    records: int,
    *,
    kind: str,
    per_epoch: int,
    depth: str = "full",
    cluster: BenchCluster | None = None,
) -> Rate:
    """Run one job over the whole input; watched through the stable end of its output topic, which costs nothing.

    The ends of transactions count too: some in a thousand records of a live query.
    """
    with running_driver(
        subject, kafka, home, source, kind=kind, per_epoch=per_epoch, depth=depth, cluster=cluster
    ) as run:
        ends = Consumer(client_config(kafka, group_id="bench", isolation_level="read_committed"))
        deadline = time.perf_counter() + _DONE_S
        first: tuple[float, int, float] | None = None
        while True:
            time.sleep(0.05)
            run.process.check_running()
            count = _published(ends, run.output)
            now = time.perf_counter()
            if first is None and count >= per_epoch:
                first = (now, count, run.cpu_s())
            if count >= records:
                break
            if now > deadline:
                raise TimeoutError(f"{subject} published {count} of {records} in {_DONE_S} s")
        cpu = run.cpu_s()
        ends.close()
    if first is None:
        raise AssertionError("unreachable: records are more than one epoch's")
    rows = count - first[1]
    measured = Rate(rows / (now - first[0]), (cpu - first[2]) / rows * 1e6, run.peak_pss_mb)
    log_progress(
        f"{subject} {kind} depth {depth}: {measured.rows_per_s:,.0f} rows/s, "
        f"{measured.cpu_us_per_row:.2f} µs CPU per row, {measured.peak_pss_mb:,.0f} MB"
    )
    return measured


def _published(consumer: Consumer, topic: str) -> int:
    """Sum of the stable end offsets of a topic; 0 while a partition of the new topic has no leader."""
    try:
        return sum(
            consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)[1]
            for partition in range(PARTITIONS)
        )
    except KafkaException as failure:
        if failure.args[0].code() == KafkaError.NOT_LEADER_FOR_PARTITION:
            return 0
        raise
