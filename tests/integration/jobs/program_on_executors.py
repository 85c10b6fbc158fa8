"""A PySpark program that publishes exactly once, for `test_program_on_executors.py`.

Its arguments are the master, the topics and the checkpoint.

One Python worker writes its process id to the file ``waits`` and then waits, once. The program prints a line for each
new epoch: number, replay or not, lanes that were published before.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import clonos
from clonos_sinks.kafka import KafkaSink


def main(master: str, name: str, source: str, out: str, checkpoint: str, waits: str) -> None:
    """Run the query until it has processed all input."""
    local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    secret = {
        "spark.authenticate": "true",
        "spark.authenticate.secret": os.environ["CLONOS_CLUSTER_SECRET"],
        "spark.network.crypto.enabled": "true",
    }
    sizes = {"spark.executor.memory": "500m", "spark.executor.cores": "1", "spark.ui.enabled": "false"}
    spark = (
        SparkSession.builder.master(master)
        .config(map={**clonos.spark_conf(), **local, **secret, **sizes})
        .getOrCreate()
    )

    @F.udf("string")
    def wait_once(value: bytes) -> str:
        if value == b"1003" and not Path(waits).exists():
            Path(waits).write_text(str(os.getpid()))
            signal.pause()  # until the test kills this worker
        return value.decode()

    rows = clonos.source(spark, source, max_per_epoch=400)
    rows = rows.select(F.col("partition").cast("string").alias("key"), wait_once("value").alias("value"))
    sink = KafkaSink("out", topic=out)
    query = clonos.exactly_once(rows, sink, job=name, checkpoint=checkpoint, available_now=True).start()
    printed = -1
    ended = False
    while not ended:
        ended = bool(query.awaitTermination(0.1))
        for epoch in query.recentProgress:
            if epoch["epoch"] > printed:
                printed = epoch["epoch"]
                print("epoch", printed, epoch["replay"], epoch["skipped_lanes"], flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
