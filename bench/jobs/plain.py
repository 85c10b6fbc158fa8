"""The benchmarks' job on plain Spark and its built-in Kafka sink, with Spark's defaults or with our session's settings.

Run as ``python -m bench.jobs.plain --session default|tuned …``.
"""

from __future__ import annotations

import argparse
import sys

from pyspark.sql import SparkSession

from bench.jobs.subject import output
from clonos.embedded.jars import ensure_jars
from clonos.kafka import spark_options
from clonos.settings import Settings
from clonos.spark.jvm import launch_gateway
from clonos.spark.session import build_session

MASTER = "local[*]"


def _session(kind: str) -> SparkSession:
    settings = Settings()
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
    arguments = parser.parse_args()
    kafka = Settings().kafka
    spark = _session(arguments.session)
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
