"""Queries over topics of several partition counts, without and with a shuffle, all in one driver."""

from pyspark.sql import functions as F

import clonos
from clonos_sinks.kafka import KafkaSink

# Lanes as on a cluster: one for each partition, which its task publishes.
KafkaSink.has_one_lane = lambda _sink, _spark: False


@clonos.udf("struct<uuid:string,draw:double,epoch:long>")
def derived(topic, partition, offset):
    key = (topic, partition, offset)
    return {"uuid": str(clonos.uuid4(key)), "draw": clonos.random(), "epoch": clonos.epoch()}


@clonos.job(name="matrix")
def matrix(ctx):
    for count in ctx.params["partitions"].split():
        records = ctx.source(ctx.params[f"in{count}"]).withColumn("word", F.col("value").cast("string"))
        # A Python operator in front of the sink is a second worker for each task: on one topic only.
        verdict = derived("topic", "partition", "offset") if count == "3" else F.lit(None)
        made = records.withColumn("verdict", verdict)
        shape = made.select("word", "topic", "partition", "offset", "verdict")
        for name, frame in ((f"same{count}", shape), (f"shuffled{count}", shape.repartition(4, "word"))):
            ctx.sink(
                frame.select(F.col("word").alias("key"), F.to_json(F.struct("*")).alias("value")),
                topic=ctx.params[f"out-{name}"],
                name=name,
            )
