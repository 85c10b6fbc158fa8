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
from clonos.kafka import client_config, java_options, spark_options
from clonos.settings import KafkaSettings, Settings
from clonos.spark import repeatable_kafka
from clonos.spark.internals import jvm_of
from clonos.spark.jvm import aot_file
from clonos.spark.kafka_clients import JvmProducer
from clonos.spark.lane_sink import FORMAT, EpochRows, TaskPlan, writing
from clonos.spark.session import build_session
from clonos.telemetry.printable import console

_TOPIC = "training"
_OUTPUT = "trained"
_PARTITIONS = 2
_RECORDS = 600
_EPOCHS = 30
_BATCH_BYTES = 1_000_000
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
    with repeatable_kafka.long_polls(spark):
        long_poll = repeatable_kafka.long_poll_option(spark)
    source = spark.readStream.format(repeatable_kafka.FORMAT).options(**spark_options(kafka), **long_poll)
    source = source.option("maxOffsetsPerTrigger", str(_RECORDS // _EPOCHS)).option("includeHeaders", "true")
    rows = source.option("subscribe", _TOPIC).option("startingOffsets", "earliest").load()
    passed = rows.select(col("value").cast("string"), "partition", "timestamp").mapInArrow(
        lambda batches: batches, "value string, partition int, timestamp timestamp"
    )
    counted = passed.withWatermark("timestamp", "1 minute").groupBy("partition").count()

    def run(name: str, writer: DataStreamWriter) -> None:
        query = writer.option("checkpointLocation", str(scratch / name)).trigger(availableNow=True).start()
        query.awaitTermination(int(_TRAINING_S))

    value = to_json(struct("*")).alias("value")
    identity, python = rows.select("key", "value", "headers"), passed.select("value")
    for name, frame in (("python", python), ("identity", identity), ("state", counted.select(value))):
        published = _Published(spark, kafka)
        checks = jvm_of(spark).clonos.TopicCheck.ofEpochs(java_options(kafka), _OUTPUT, _BATCH_BYTES, _BATCH_BYTES)
        with writing(spark, published, job="training", topic=_OUTPUT, checks=checks) as options:
            run(name, frame.writeStream.outputMode("update").format(FORMAT).options(**options))
        published.close()


class _Published:
    """Publishes the epochs of a query as a lane does (`clonos.spark.lane_sink.Committer`)."""

    def __init__(self, spark: SparkSession, kafka: KafkaSettings) -> None:
        options = {"transactional.id": _OUTPUT, "enable.metrics.push": "false"}
        self._producer = JvmProducer(spark, java_options(kafka) | options)
        self._producer.init()
        self.close = self._producer.close

    def begin(self, _epoch: int, partitions: int) -> TaskPlan:
        """Let the tasks send their rows."""
        return TaskPlan.of_all("SEND", partitions)

    def commit(self, _epoch: int, rows: EpochRows) -> None:
        """Publish the rows in one transaction."""
        self._producer.begin()
        rows.all.send_to(self._producer)
        self._producer.mark(_OUTPUT, 0, b"marker")
        self._producer.commit()

    def abort(self, epoch: int) -> None:
        """Not expected: the training data is valid."""

    def reach(self, point: str, task: int) -> None:
        """Do nothing: no task publishes."""


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
