"""A job for a Spark cluster. One of its tasks waits once, so that a test can end its executor at that moment.

The task that reaches the record `trigger` writes its process id to the file `waits`, and then waits for the file
`waits`.go. A repeated task does not wait.
"""

import os
import secrets
import time
from pathlib import Path

from pyspark.sql import functions as F

import clonos

_WAIT_S = 300.0


def wait_once(waits):
    try:
        with Path(waits).open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return
    deadline = time.monotonic() + _WAIT_S
    while not Path(f"{waits}.go").exists() and time.monotonic() < deadline:
        time.sleep(0.05)


@clonos.service
def ask(word: str) -> str:
    """Return a different answer at each call."""
    return f"{word}-{secrets.token_hex(6)}"


@clonos.udf("struct<answer:string,uuid:string,epoch:long>")
def judge(topic, partition, offset, word, trigger, waits):
    verdict = {"answer": ask(word[0]), "uuid": str(clonos.uuid4((topic, partition, offset))), "epoch": clonos.epoch()}
    if word == trigger:
        wait_once(waits)
    return verdict


@clonos.udf("string")
def wait_at(word, trigger, waits):
    if word == trigger:
        wait_once(waits)
    return word


@clonos.job(name="on-cluster", spark_conf={"spark.sql.shuffle.partitions": "2"})
def on_cluster(ctx):
    trigger, waits = F.lit(ctx.params["trigger"]), F.lit(ctx.params["waits"])
    records = ctx.source(ctx.params["input"]).withColumn("word", F.col("value").cast("string"))
    kind, padding = ctx.params["kind"], F.lit("." * int(ctx.params["padding"])).alias("padding")
    if kind == "stateful":
        words = records.withColumn("word", wait_at("word", trigger, waits))
        counts = words.groupBy(F.substring("word", 1, 1).alias("letter")).count()
        value = F.to_json(F.struct("letter", "count", padding)).alias("value")
        ctx.sink(counts.select(F.col("letter").alias("key"), value), topic=ctx.params["output"], mode="update")
        return
    if kind == "service":
        verdict = judge("topic", "partition", "offset", "word", trigger, waits)
    else:
        records = records.withColumn("word", wait_at("word", trigger, waits))
        verdict = F.struct(
            F.lit("").alias("answer"), F.concat_ws("-", "partition", "offset").alias("uuid"), F.lit(0).alias("epoch")
        )
    judged = records.withColumn("verdict", verdict)
    value = F.to_json(F.struct("word", "topic", "partition", "offset", "verdict", padding)).alias("value")
    ctx.sink(judged.select(F.concat_ws("-", "topic", "partition").alias("key"), value), topic=ctx.params["output"])
