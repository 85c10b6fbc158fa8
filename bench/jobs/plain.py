"""The benchmarks' job on plain Spark and its built-in Kafka sink: with default settings, ours, or on a cluster.

Run as ``python -m bench.jobs.plain --session default|tuned|cluster …``.
"""

from __future__ import annotations

import argparse
import os
import sys

from pyspark.sql import SparkSession

from bench.jobs.subject import output
from bench.spark_cluster import EXECUTOR_MEMORY
from clonos.embedded.jars import ensure_jars
from clonos.jobs.cluster import SECRET_VARIABLE
from clonos.kafka import spark_options
from clonos.settings import Settings
from clonos.spark.jvm import launch_gateway
from clonos.spark.session import build_session, connector_jars

MASTER = "local[*]"


def _session(kind: str, master: str, executors: int) -> SparkSession:
    settings = Settings()
    if kind == "cluster":
        jars = ensure_jars(settings)
        conf = {
            "spark.master": master,
            "spark.driver.host": "127.0.0.1",
            "spark.cores.max": str(executors),
            "spark.executor.cores": "1",
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.jars": connector_jars(jars),
            "spark.authenticate": "true",
            "spark.authenticate.secret": os.environ[SECRET_VARIABLE],
            "spark.network.crypto.enabled": "true",
        }
        launch_gateway(jars, conf=conf, heap_mb=1024)
        return SparkSession.builder.master(master).appName("bench-cluster").getOrCreate()
    if kind == "tuned":
        return build_session("bench-tuned", settings=settings).spark
    # Spark's default settings, except those that Java on this machine needs; the heap is the same for all subjects.
    launch_gateway(ensure_jars(settings), conf={"spark.master": MASTER}, heap_mb=1024)
    return SparkSession.builder.master(MASTER).appName("bench-default").getOrCreate()


def main() -> None:
    """Run until the process is killed."""
    parser = argparse.ArgumentParser()
    for name in ("session", "kind", "input", "output", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--per-epoch", type=int, default=0)
    parser.add_argument("--master", default="")
    parser.add_argument("--executors", type=int, default=0)
    arguments = parser.parse_args()
    kafka = Settings().kafka
    spark = _session(arguments.session, arguments.master, arguments.executors)
    options = {**spark_options(kafka), "subscribe": arguments.input, "startingOffsets": "earliest"}
    if arguments.session == "tuned":
        options["kafka.fetch.max.wait.ms"] = "5"
    if arguments.per_epoch:
        options["maxOffsetsPerTrigger"] = str(arguments.per_epoch)
    records = spark.readStream.format("kafka").options(**options).load()
    query = (
        output(records, arguments.kind)
        .writeStream.format("kafka")
        .options(**spark_options(kafka))
        .option("topic", arguments.output)
        .option("checkpointLocation", arguments.checkpoint)
        .start()
    )
    query.awaitTermination()
    sys.exit(1)


if __name__ == "__main__":
    main()
