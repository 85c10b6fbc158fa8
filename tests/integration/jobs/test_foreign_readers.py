"""Readers of other clients see what a job published: Kafka's Java client and kcat (librdkafka in C)."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from clonos import faults
from clonos.errors import EpochFailed
from clonos.jobs.context import JobContext
from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos.spark.internals import jvm_of
from clonos.testing.harness import eventually, has_open_transaction
from support.reporting import missing

pytestmark = pytest.mark.full

MakeTopic = Callable[..., str]
PARTITIONS = 2
RECORDS = 60

Records = Counter[tuple[int, bytes, bytes]]  # partition, key, value


@pytest.fixture
def output(kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic) -> str:
    """The output of a job with several epochs; an attempt failed after its records were sent."""
    source, out = make_topic(PARTITIONS, "in"), make_topic(PARTITIONS, "out")
    producer = Producer(client_config(kafka))
    for number in range(RECORDS):
        producer.produce(source, f"v{number}", f"k{number}", partition=number % PARTITIONS)
    assert producer.flush(30) == 0

    def job(ctx: JobContext) -> None:
        rows = ctx.source(source, max_per_epoch=20)
        ctx.sink(rows.select("key", "value", "partition", F.col("headers")), topic=out, name="out")

    failures = iter([None])

    def fail_once() -> None:
        if next(failures, True) is None:
            eventually(lambda: has_open_transaction(kafka, out), "records of the attempt have arrived")
            raise EpochFailed("injected")

    with faults.acting("lane-marked", fail_once, epoch=1):
        run_job(job, name)
    assert len(run_job.events_of("restart")) == 1
    return out


def expected() -> Records:
    return Counter((n % PARTITIONS, f"k{n}".encode(), f"v{n}".encode()) for n in range(RECORDS))


@pytest.mark.parametrize(("isolation", "sees_aborted"), [("read_committed", False), ("read_uncommitted", True)])
def test_kafkas_java_client(
    spark: SparkSession, kafka: KafkaSettings, output: str, isolation: str, sees_aborted: bool
) -> None:
    """The reader without isolation shows that the output holds an aborted transaction."""
    records = java_records(spark, kafka, output, isolation)
    assert (records == expected()) is not sees_aborted
    assert records >= expected()


@pytest.mark.ci
def test_kcat(request: pytest.FixtureRequest, kafka: KafkaSettings, output: str) -> None:
    if shutil.which("kcat") is None:
        missing(request.config, "kcat", "There is no kcat: apt-get install -y kcat.")
    command = ["kcat", "-C", "-e", "-q", "-b", kafka.bootstrap_servers, "-t", output, "-o", "beginning"]
    command += ["-X", "isolation.level=read_committed", "-f", "%p %k %s\\n"]
    lines = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout.splitlines()
    rows = [line.split(b" ") for line in lines]
    assert Counter((int(partition), key, value) for partition, key, value in rows) == expected()


def java_records(spark: SparkSession, kafka: KafkaSettings, topic: str, isolation: str) -> Records:
    jvm = jvm_of(spark)
    deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "isolation.level": isolation,
            "key.deserializer": deserializer,
            "value.deserializer": deserializer,
        }
    )
    try:
        partitions = [jvm.org.apache.kafka.common.TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seekToBeginning(partitions)
        ends = consumer.endOffsets(partitions)
        records: Records = Counter()
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            batch = consumer.poll(jvm.java.time.Duration.ofMillis(500)).iterator()
            while batch.hasNext():
                record = batch.next()
                records[record.partition(), bytes(record.key()), bytes(record.value())] += 1
        return records
    finally:
        consumer.close()
