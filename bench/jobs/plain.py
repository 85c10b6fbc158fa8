"""The benchmarks' job on plain Spark and its built-in Kafka sink, with Spark's defaults or with our session's settings.

Run as ``python -m bench.jobs.plain --session default|tuned …``.
"""

from __future__ import annotations

import argparse
import sys

from pyspark.sql import SparkSession

from bench.jobs.subject import output
from clonos.embedded.jars import ensure_jars
from clonos.engine.jvm import launch_gateway
from clonos.engine.session import build_session
from clonos.kafka import spark_options
from clonos.settings import Settings

MASTER = "local[*]"


def _session(kind: str) -> SparkSession:
    settings = Settings()
    if kind == "tuned":
        return build_session("bench-tuned", settings=settings).spark
    # Spark as it comes, but for what this machine's Java needs; the same heap as the others.
    launch_gateway(ensure_jars(settings), conf={"spark.master": MASTER}, heap_mb=1024)
    return SparkSession.builder.master(MASTER).appName("bench-default").getOrCreate()


def main() -> None:
    """Run until the process is ended."""
    parser = argparse.ArgumentParser()
    for name in ("session", "kind", "input", "output", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--per-epoch", type=int, default=0)
    given = parser.parse_args()
    kafka = Settings().kafka
    spark = _session(given.session)
    options = {**spark_options(kafka), "subscribe": given.input, "startingOffsets": "earliest"}
    if given.session == "tuned":
        options["kafka.fetch.max.wait.ms"] = "5"
    if given.per_epoch:
        options["maxOffsetsPerTrigger"] = str(given.per_epoch)
    records = spark.readStream.format("kafka").options(**options).load()
    query = (
        output(records, given.kind)
        .writeStream.format("kafka")
        .options(**spark_options(kafka))
        .option("topic", given.output)
        .option("checkpointLocation", given.checkpoint)
        .start()
    )
    query.awaitTermination()
    sys.exit(1)


if __name__ == "__main__":
    main()
