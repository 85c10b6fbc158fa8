"""A job that inserts each record with a service's answer, and upserts the count of each letter, in a database."""

import secrets

from pyspark.sql import functions as F

import clonos


@clonos.service
def ask(word: str) -> str:
    """Return a different answer at each call."""
    return f"{word}-{secrets.token_hex(6)}"


@clonos.udf("string")
def judge(word):
    return ask(word)


@clonos.job(name="sql", spark_conf={"spark.sql.shuffle.partitions": "2"})
def sql(ctx):
    records = ctx.source(ctx.params["input"]).withColumn("word", F.col("value").cast("string"))
    plain = records.select("word", judge("word").alias("answer"))
    ctx.sink(plain, connector="sql", connection="crm", table="plain", name="plain")
    counts = records.groupBy(F.substring("word", 1, 1).alias("letter")).agg(F.count("*").alias("n"))
    ctx.sink(counts, connector="sql", connection="crm", table="counts", key=["letter"], name="counts", mode="update")
