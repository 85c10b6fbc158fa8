"""Creates the ahead-of-time caches of the JVMs: ``python -m clonos.spark.aot``, once after an installation.

A cache makes JVMs with Java 25 start faster. It is optional: without a cache, or with a stale cache, they start
normally.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, struct, to_json
from pyspark.sql.streaming.readwriter import DataStreamWriter

from clonos.embedded import aot
from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import Jars, ensure_jars
from clonos.embedded.java import java_binary
from clonos.errors import ClonosError
from clonos.extend.sink import SinkEpoch, SinkLane
from clonos.jobs.context import find_connector
from clonos.kafka import client_config
from clonos.log.claiming import Ownership, claim
from clonos.log.records import EpochIdentity, InputSlice
from clonos.settings import KafkaSettings, Settings
from clonos.spark.jvm import aot_file
from clonos.spark.lane_sink import FORMAT, EpochRows, EpochWriter, TaskPlan, writing
from clonos.spark.session import build_session
from clonos.spark.source_streams import long_polls
from clonos.telemetry.printable import console

_JOB = "training"
_TOPIC = "training"
_OUTPUT = "trained"
_PARTITIONS = 2
_RECORDS = 600
_EPOCHS = 30
_TRAINING_S = 120.0


def train(settings: Settings) -> list[Path]:
    """Create the caches of the embedded broker and of Spark's JVM, for this Java and these jars.

    Returns:
        The files of the caches; empty if this Java does not support them.
    """
    java = java_binary()
    if not aot.supported(java):
        return []
    jars = ensure_jars(settings)
    with tempfile.TemporaryDirectory(prefix="clonos-training-") as folder:
        scratch = Path(folder)
        broker = EmbeddedKafka(scratch / "kafka", jars=jars).train()
        with EmbeddedKafka(scratch / "kafka", jars=jars) as cluster:
            spark = _train_spark(jars, java, cluster.kafka, scratch)
    return [file for file in (broker, spark) if file and file.is_file()]


def _train_spark(jars: Jars, java: Path, kafka: KafkaSettings, scratch: Path) -> Path:
    admin = AdminClient(client_config(kafka))
    for created in admin.create_topics([NewTopic(topic, _PARTITIONS) for topic in (_TOPIC, _OUTPUT)]).values():
        created.result(30)
    producer = Producer(client_config(kafka))
    for number in range(_RECORDS):
        producer.produce(_TOPIC, str(number), str(number), partition=number % _PARTITIONS)
    producer.flush(30)
    file = aot_file(jars, java)
    log = scratch / "spark.log"
    with aot.training_flags(file) as flags:
        session = build_session("training", master="local[2]", jars=jars, jvm_flags=flags, log_file=log)
        try:
            _run_queries(session.spark, kafka, scratch)
        finally:
            # The JVM writes the cache when it exits, which takes a while.
            session.stop(timeout_s=_TRAINING_S)
    return file


def _run_queries(spark: SparkSession, kafka: KafkaSettings, scratch: Path) -> None:
    """Run the steps of typical jobs: read Kafka, call Python, store state, publish epochs, and write from Python.

    The JVM stores which methods were used often (JEP 515), so the queries have several epochs.
    """
    with long_polls(spark):
        source = find_connector("clonos.sources", "kafka")((_TOPIC,), max_per_epoch=_RECORDS // _EPOCHS)
        rows = source.load(spark, kafka, _JOB)
    passed = rows.select(col("value").cast("string"), "partition", "timestamp").mapInArrow(
        lambda batches: batches, "value string, partition int, timestamp timestamp"
    )
    counted = passed.withWatermark("timestamp", "1 minute").groupBy("partition").count()

    def run(name: str, writer: DataStreamWriter) -> None:
        query = writer.option("checkpointLocation", str(scratch / name)).trigger(availableNow=True).start()
        query.awaitTermination(int(_TRAINING_S))

    value = to_json(struct("*")).alias("value")
    identity, python = rows.select("key", "value", "headers"), passed.select("value")
    own = claim(kafka, _JOB)
    for name, frame in (("python", python), ("identity", identity), ("state", counted.select(value))):
        published = _Published(spark, own, name)
        writer = published.writer
        with writing(spark, published, job=_JOB, topic=writer.topic, checks=writer.checks) as options:
            run(name, writer.frame(frame).writeStream.outputMode("update").format(FORMAT).options(**options))
        writer.close()


class _Published:
    """Publishes the epochs of a query to Kafka (`clonos.spark.lane_sink.Committer`)."""

    def __init__(self, spark: SparkSession, own: Ownership, name: str) -> None:
        sink = find_connector("clonos.sinks", "kafka")(name, topic=_OUTPUT)
        sink.check(own.kafka)
        self.writer: EpochWriter = sink.writer(spark, own.kafka, ())
        self._own = own
        self._name = name
        self._epoch: SinkEpoch | None = None

    def begin(self, epoch: int, partitions: int) -> TaskPlan:
        """Begin an epoch without a plan in the log: nothing is replayed."""
        own = self._own
        slices = tuple(InputSlice("range", _TOPIC, partition) for partition in range(partitions))
        lanes = self.writer.lanes(slices)
        assigned = zip(lanes, own.ensure_lanes(self._name, len(lanes)), strict=True)
        self._epoch = SinkEpoch(
            EpochIdentity(own.job, own.topic, self._name, epoch, own.owner, False),
            own.kafka,
            tuple(SinkLane(number, number, part, log) for number, (part, log) in enumerate(assigned)),
        )
        return self.writer.begin(self._epoch, partitions)

    def commit(self, _epoch: int, rows: EpochRows) -> None:
        """Publish the rows."""
        assert self._epoch is not None
        self.writer.publish(self._epoch, rows)

    def abort(self, epoch: int) -> None:
        """Not expected: the training data is valid."""

    def reach(self, point: str, task: int) -> None:
        """Do nothing: no test waits."""


if __name__ == "__main__":
    out = console(soft_wrap=True)
    began = time.monotonic()
    try:
        caches = train(Settings())
    except ClonosError as failure:
        sys.exit(str(failure))
    for cache in caches:
        out.print(f"{cache} ({cache.stat().st_size // 2**20} MB)")
    out.print(f"Start-up caches: {len(caches)}, in {time.monotonic() - began:.0f} s.")
