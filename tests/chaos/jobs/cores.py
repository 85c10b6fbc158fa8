"""Operators before and after a shuffle, whose width is Spark's default: twice the cores of the first start."""

import json
import uuid

import pandas as pd
from pyspark import TaskContext
from pyspark.sql import functions as F

import clonos


@clonos.service
def opinion(word):
    return str(uuid.uuid4())


@clonos.operator(name="readers")
def read(batches):
    for batch in batches:
        yield batch.assign(word_opinion=opinion.map(batch["word"]), lot=[clonos.random() for _ in batch["word"]])


@clonos.operator(name="talks", order_by="word")
def talk(key, rows):
    return pd.DataFrame(
        {
            "value": [
                json.dumps(
                    {
                        "word": row.word,
                        "word_opinion": row.word_opinion,
                        "lot": row.lot,
                        "said": opinion(key[0]),
                        "draw": clonos.random(),
                        "lane": TaskContext.get().partitionId(),
                    }
                )
                for row in rows.itertuples()
            ]
        }
    )


@clonos.job(name="cores")
def cores(ctx):
    # Spark splits the source's ranges by this number, not by the number of cores.
    lines = ctx.source(ctx.params["input"], options={"minPartitions": "5"})
    words = lines.select(F.col("value").cast("string").alias("word"))
    opinions = words.mapInPandas(read, "word string, word_opinion string, lot double")
    keyed = opinions.withColumn("key", F.expr("cast(hash(word) % 50 AS string)"))
    ctx.sink(keyed.groupBy("key").applyInPandas(talk, "value string"), topic=ctx.params["output"], name="said")
