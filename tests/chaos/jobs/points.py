"""A job with a service, derived values, a stateless and a stateful query."""

import secrets

from pyspark.sql import functions as F

import clonos


@clonos.service
def ask(word: str) -> str:
    """Return a different answer at each call."""
    return f"{word}-{secrets.token_hex(6)}"


@clonos.udf("struct<answer:string,uuid:string,draw:double,clock:timestamp,epoch:long>")
def judge(topic, partition, offset, word):
    key = (topic, partition, offset)
    return {
        "answer": ask(word),
        "uuid": str(clonos.uuid4(key)),
        "draw": clonos.random(key),
        "clock": clonos.clock(word),
        "epoch": clonos.epoch(),
    }


@clonos.job(name="points", spark_conf={"spark.sql.shuffle.partitions": "2"})
def points(ctx):
    records = ctx.source(ctx.params["input"]).withColumn("word", F.col("value").cast("string"))
    key = F.substring("word", 1, 1)
    if "output" in ctx.params:
        judged = records.withColumn("verdict", judge("topic", "partition", "offset", key))
        ctx.sink(
            judged.select(
                F.concat_ws("-", "topic", "partition").alias("key"),
                F.to_json(F.struct("word", "topic", "partition", "offset", "verdict")).alias("value"),
            ),
            topic=ctx.params["output"],
            name="plain",
            transaction_timeout_ms=int(ctx.params.get("transaction_timeout_ms", "60000")),
        )
    if "counts" in ctx.params:
        counts = records.groupBy(key.alias("letter")).count()
        ctx.sink(
            counts.select(F.col("letter").alias("key"), F.to_json(F.struct("letter", "count")).alias("value")),
            topic=ctx.params["counts"],
            name="counts",
            mode="update",
        )
