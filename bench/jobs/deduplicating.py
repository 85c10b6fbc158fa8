"""The benchmarks' job with state in Spark's own operators: passes each record once, stores all keys.

A record whose key begins with ``f`` is not published: its value is the number of bytes of its state. The records of a
key have no order within an epoch, because they are shuffled by key and number.
"""

from __future__ import annotations

from pyspark.sql import functions as F

import clonos

# Incompressible text, equal in a replay.
BALLAST = "array_join(transform(sequence(1, cast(number / 128 as int)), i -> sha2(concat(key, i), 512)), '')"


@clonos.job(name="bench-deduplicating", params={"input": "in", "output": "out", "per_epoch": "2000"})
def deduplicating(ctx: clonos.JobContext) -> None:
    """Read, drop duplicates, publish."""
    records = ctx.source(ctx.params["input"], max_per_epoch=int(ctx.params["per_epoch"]))
    named = records.select(
        F.col("key").cast("string").alias("key"), F.col("value").cast("string").cast("long").alias("number")
    )
    filling = F.col("key").startswith("f")
    once = named.withColumn("ballast", F.when(filling, F.expr(BALLAST))).dropDuplicates(["key", "number", "ballast"])
    ctx.sink(
        once.filter(~filling).select(
            F.col("key").cast("binary"), F.col("number").cast("string").cast("binary").alias("value")
        ),
        topic=ctx.params["output"],
        name="out",
    )
