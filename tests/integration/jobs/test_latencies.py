"""A driver reports the end-to-end latency of each record once: from its timestamp in Kafka to its epoch's commit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import functions as F

from clonos import faults
from clonos.errors import EpochFailed
from clonos.jobs.context import JobContext
from clonos.kafka import client_config
from clonos.settings import KafkaSettings

pytestmark = pytest.mark.turn

SLOW_S = 4.0  # of the replay
AGES_S = (2, 60, 3600, 86_400)


def feed(kafka: KafkaSettings, topic: str, at: float) -> None:
    producer = Producer(client_config(kafka))
    for number, age_s in enumerate(AGES_S):
        for partition in range(2):
            producer.produce(topic, f"{number}", partition=partition, timestamp=round(1000 * (at - age_s)))
    assert producer.flush(30) == 0


def test_each_record_has_its_latency(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: Callable[..., str]
) -> None:
    """An attempt fails after its tasks have read: only the replay counts, until its commit."""
    source, out = make_topic(2, "in"), make_topic(1, "out")
    began = time.time()
    feed(kafka, source, began)

    def define(ctx: JobContext) -> None:
        both = ctx.source(source).union(ctx.source(source))
        ctx.sink(both.repartition(2).select(F.col("value")), topic=out)

    failures = iter([None])

    def fail_once() -> None:
        if next(failures, True) is None:
            raise EpochFailed("injected")
        time.sleep(SLOW_S)

    with faults.acting("lane-produced", fail_once, epoch=0):
        run_job(define, name)
    assert run_job.events_of("restart")
    # The replay of a committed epoch has none.
    (epoch,) = [event for event in run_job.events_of("epoch") if event["latencies"]]
    assert sum(epoch["latencies"].values()) == 2 * epoch["records_in"], "both scans read each record, which counts once"
    took_s = epoch["at"] - began
    latencies = Counter({int(number): records for number, records in epoch["latencies"].items()})
    longest_ms = sorted(2 ** (number / 4) for number in latencies.elements())
    assert len(longest_ms) == 4 * len(AGES_S)
    for age_s, ms in zip(sorted(4 * AGES_S), longest_ms, strict=True):
        # The event follows the commit.
        assert 1000 * (age_s + SLOW_S) <= ms <= 1.27 * 1000 * (age_s + took_s)
