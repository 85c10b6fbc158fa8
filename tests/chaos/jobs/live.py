"""A query that can run live."""

import threading
import time

from pyspark.sql import functions as F

import clonos


@clonos.service(timeout=5, concurrency=4)
def echo(word):
    """Return the word."""
    return word


@clonos.udf("string")
def same(word):
    """Return the word, from a service."""
    return echo(word)


def occupy(context, seconds):
    """Let another Spark job of the session occupy a slot."""
    context.parallelize([seconds], 1).foreach(time.sleep)


@clonos.job(name="live")
def live(ctx):
    if "occupied" in ctx.params:
        threading.Thread(
            target=occupy, args=(ctx.spark.sparkContext, float(ctx.params["occupied"])), daemon=True
        ).start()
    records = ctx.source(ctx.params["input"]).withColumn("word", F.col("value").cast("string"))
    if "python" in ctx.params:
        records = records.withColumn("word", same("word"))
    key = F.concat_ws("-", "topic", "partition", "offset")
    verdict = F.struct(F.lit(0).alias("epoch"), F.lit("").alias("answer"), key.alias("uuid"))
    value = F.to_json(F.struct("word", "topic", "partition", "offset", verdict.alias("verdict")))
    ctx.sink(
        records.select(F.concat_ws("-", "topic", "partition").alias("key"), value.alias("value")),
        topic=ctx.params["output"],
        name="out",
        transaction_timeout_ms=5_000,
    )
