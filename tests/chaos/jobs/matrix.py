"""Queries over topics of several partition counts, without and with a shuffle, all in one driver."""

from pyspark.sql import functions as F

import clonos


@clonos.udf("struct<uuid:string,draw:double,epoch:long>")
def derived(topic, partition, offset):
    key = (topic, partition, offset)
    return {"uuid": str(clonos.uuid4(key)), "draw": clonos.random(), "epoch": clonos.epoch()}


@clonos.job(name="matrix")
def matrix(ctx):
    for count in ctx.params["partitions"].split():
        records = ctx.source(ctx.params[f"in{count}"]).withColumn("word", F.col("value").cast("string"))
        made = records.withColumn("verdict", derived("topic", "partition", "offset"))
        shape = made.select("word", "topic", "partition", "offset", "verdict")
        for name, frame in ((f"same{count}", shape), (f"shuffled{count}", shape.repartition(4, "word"))):
            ctx.sink(
                frame.select(F.col("word").alias("key"), F.to_json(F.struct("*")).alias("value")),
                topic=ctx.params[f"out-{name}"],
                name=name,
            )
