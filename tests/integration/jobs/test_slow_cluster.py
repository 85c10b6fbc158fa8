"""A cluster that throttles its clients is slow, and no failure (`clonos.LaneProducer`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import ensure_jars
from clonos.errors import EpochFailed, EpochTooLarge
from clonos.jobs.context import JobContext
from clonos.kafka import client_config, java_options
from clonos.settings import KafkaSettings, Settings
from clonos.spark.internals import jvm_of
from clonos.testing.harness import eventually, read_committed
from clonos_sinks.kafka import sink as sink_module
from clonos_sinks.kafka.clients import JvmProducer, ProducerFailed
from support.brokers.severed import SeveredCluster
from support.feeding import feed_numbers

pytestmark = pytest.mark.embedded
QUOTA = 1_000_000
RECORDS = 60
RECORD_BYTES = 100_000


@pytest.fixture
def slow(spark: SparkSession, tmp_path: Path) -> Iterator[KafkaSettings]:
    """A broker that takes a megabyte a second from all clients together, with 60 records in the topic ``in``."""
    properties = {"quota.window.num": "2"}  # Kafka's default lets the first ten megabytes pass at once
    with EmbeddedKafka(tmp_path / "kafka", jars=ensure_jars(Settings()), properties=properties) as cluster:
        admin = AdminClient(client_config(cluster.kafka))
        for created in admin.create_topics([NewTopic(topic, 1) for topic in ("in", "out")]).values():
            created.result(60)
        feed_numbers(cluster.kafka, "in", RECORDS)
        throttle(spark, cluster.kafka, QUOTA)
        yield cluster.kafka


def throttle(spark: SparkSession, kafka: KafkaSettings, bytes_per_s: int) -> None:
    """Set the quota of the default client."""
    jvm: Any = jvm_of(spark)
    admin = jvm.org.apache.kafka.clients.admin.Admin.create({"bootstrap.servers": kafka.bootstrap_servers})
    quota = jvm.org.apache.kafka.common.quota
    entity = quota.ClientQuotaEntity({"client-id": None})
    operation = quota.ClientQuotaAlteration.Op("producer_byte_rate", float(bytes_per_s))
    admin.alterClientQuotas([quota.ClientQuotaAlteration(entity, [operation])]).all().get()
    admin.close()


@pytest.mark.turn
@pytest.mark.parametrize("lanes", ["driver", "partition"])
def test_a_throttled_epoch_commits_at_its_first_attempt(
    slow: KafkaSettings,
    run_on: Callable[[KafkaSettings], Any],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    lanes: str,
) -> None:
    """Its rows take longer than the wait for a commit, and than the timeout of a transaction with few rows."""
    monkeypatch.setattr("clonos_sinks.kafka.lane._BLOCK_MS", 2_500)
    monkeypatch.setattr("clonos_sinks.kafka.lane._REQUEST_MS", 2_500)
    if lanes == "partition":
        request.getfixturevalue("partition_lanes")

    def define(ctx: JobContext) -> None:
        large = F.concat(F.col("value").cast("string"), F.lit(" "), F.repeat(F.lit("x"), RECORD_BYTES))
        rows = ctx.source("in").select(large.alias("value"))
        ctx.sink(rows, topic="out", name="out", transaction_timeout_ms=3_000)

    jobs = run_on(slow)
    jobs(define, name)
    assert jobs.events_of("restart") == []
    published = [(message.value() or b"").split()[0] for message in read_committed(slow, "out")]
    assert sorted(map(int, published)) == list(range(RECORDS))


@pytest.mark.turn
@pytest.mark.parametrize("lanes", ["driver", "partition"])
def test_an_epoch_that_never_fits_stops_the_job(
    slow: KafkaSettings,
    run_on: Callable[[KafkaSettings], Any],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    lanes: str,
) -> None:
    """Not even within the longest transaction: an error names what to change, and further attempts do not follow."""
    monkeypatch.setattr("clonos_sinks.kafka.lane._BLOCK_MS", 1_000)
    monkeypatch.setattr("clonos_sinks.kafka.lane._REQUEST_MS", 1_000)
    settings = sink_module.broker_settings
    monkeypatch.setattr(
        sink_module, "broker_settings", lambda *of: settings(*of) | {"transaction.max.timeout.ms": 2_000}
    )
    if lanes == "partition":
        request.getfixturevalue("partition_lanes")

    def define(ctx: JobContext) -> None:
        large = F.concat(F.col("value").cast("string"), F.lit(" "), F.repeat(F.lit("x"), 10 * RECORD_BYTES // 3))
        ctx.sink(ctx.source("in").select(large.alias("value")), topic="out", name="out", transaction_timeout_ms=1_000)

    jobs = run_on(slow)
    with pytest.raises(EpochTooLarge, match="transaction's timeout of 2 s") as stopped:
        jobs(define, name)
    assert "max_per_epoch" in stopped.value.hint
    assert len(jobs.events_of("restart")) <= 1, "at most one attempt with less time"
    assert read_committed(slow, "out") == []


def initialised(producer: JvmProducer) -> bool:
    try:
        producer.init()
    except ProducerFailed:
        return False
    return True


@pytest.mark.turn
def test_a_broker_that_is_away_does_not_make_an_epoch_too_large(spark: SparkSession, tmp_path: Path) -> None:
    """The transaction times out, but Kafka has not acknowledged a record in that time."""
    with SeveredCluster(tmp_path / "kafka") as cluster:
        admin = AdminClient(client_config(cluster.kafka))
        admin.create_topics([NewTopic("out", 1)])["out"].result(60)
        far = KafkaSettings(bootstrap_servers=cluster.far["CLONOS_KAFKA__BOOTSTRAP_SERVERS"])
        times = {"transaction.timeout.ms": "1000", "max.block.ms": "1500", "transactional.id": "lane"}
        producer = JvmProducer(spark, java_options(far) | times)
        eventually(lambda: initialised(producer), "the producer has its id, on a busy machine too")
        producer.begin()
        producer.mark("out", 0, b"first")
        producer.commit()
        producer.begin()
        cluster.cut()
        producer.mark("out", 0, b"second")
        with pytest.raises(ProducerFailed) as failed:  # after 1.5 s
            producer.commit()
        producer.close()
        assert isinstance(failed.value.typed("Lane 0 of out", EpochFailed), EpochFailed)
        cluster.heal()
