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
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from rich.console import Console

from clonos.embedded import aot
from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import Jars, ensure_jars
from clonos.embedded.java import java_binary
from clonos.errors import ClonosError
from clonos.kafka import client_config, spark_options
from clonos.settings import KafkaSettings, Settings
from clonos.spark.jvm import aot_file
from clonos.spark.session import build_session

_TOPIC = "training"
_RECORDS = 100
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
    admin.create_topics([NewTopic(_TOPIC, 2)])[_TOPIC].result(30)
    producer = Producer(client_config(kafka))
    for number in range(_RECORDS):
        producer.produce(_TOPIC, value=str(number))
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
    """Run the steps of a typical job: read Kafka, call Python, store state, and write partitions from Python."""
    source = spark.readStream.format("kafka").options(**spark_options(kafka))
    rows = source.option("subscribe", _TOPIC).option("startingOffsets", "earliest").load()
    passed = rows.select(col("value").cast("string"), "partition", "timestamp").mapInArrow(
        lambda batches: batches, "value string, partition int, timestamp timestamp"
    )
    counted = passed.withWatermark("timestamp", "1 minute").groupBy("partition").count()

    def write(frame: DataFrame, epoch: int) -> None:
        frame.mapInArrow(lambda batches: batches, frame.schema).collect()

    for name, frame in (("append", passed), ("update", counted)):
        query = (
            frame.writeStream.outputMode(name)
            .option("checkpointLocation", str(scratch / name))
            .foreachBatch(write)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(int(_TRAINING_S))


if __name__ == "__main__":
    console = Console(highlight=False, soft_wrap=True)
    began = time.monotonic()
    try:
        caches = train(Settings())
    except ClonosError as failure:
        sys.exit(str(failure))
    for cache in caches:
        console.print(f"{cache} ({cache.stat().st_size // 2**20} MB)")
    console.print(f"Start-up caches: {len(caches)}, in {time.monotonic() - began:.0f} s.")
