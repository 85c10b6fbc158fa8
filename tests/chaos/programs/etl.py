"""A PySpark program that builds its own session and only takes the sink (and a service) from Clonos."""

import os
import secrets
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import clonos
from clonos_sinks.kafka import KafkaSink

NAME, SOURCE, TARGET, DELIVERY = sys.argv[1:5]


@clonos.service
def ask(word: str) -> str:
    """Return a different answer at each call."""
    return f"{word}-{secrets.token_hex(6)}"


@clonos.udf("struct<answer:string,uuid:string,epoch:long>")
def judge(topic, partition, offset, word):
    return {"answer": ask(word), "uuid": str(clonos.uuid4((topic, partition, offset))), "epoch": clonos.epoch()}


home = Path(os.environ["CLONOS_HOME"])
spark = SparkSession.builder.master("local[2]").config(map=clonos.spark_conf()).getOrCreate()
records = clonos.source(spark, SOURCE).withColumn("word", F.col("value").cast("string"))
judged = records.withColumn("verdict", judge("topic", "partition", "offset", F.substring("word", 1, 1)))
value = F.to_json(F.struct("word", "topic", "partition", "offset", "verdict")).alias("value")
query = clonos.exactly_once(
    judged.select(F.concat_ws("-", "topic", "partition").alias("key"), value),
    KafkaSink("out", topic=TARGET, delivery=DELIVERY),
    job=NAME,
    checkpoint=home / "checkpoint",
    events=home / "events.jsonl",
).start()
query.awaitTermination()
