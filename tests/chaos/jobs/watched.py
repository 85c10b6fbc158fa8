"""A job whose functions append a line to a file at each call."""

import os
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

import clonos

CALLS = Path(os.environ.get("CLONOS_HOME", "."), "calls")


def called(what: str) -> None:
    with CALLS.open("a") as calls:
        calls.write(what + "\n")


@clonos.udf("string")
def each(value: str) -> str:
    called("udf")
    return value


@F.pandas_udf(StringType())
def vector(values: pd.Series) -> pd.Series:
    called("pandas_udf")
    return values


@clonos.operator
def frames(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    called("operator")
    yield from batches


@clonos.job(name="watched")
def watched(ctx: clonos.JobContext) -> None:
    lines = ctx.source(ctx.params["input"]).select(F.col("value").cast("string").alias("value"))
    seen = lines.select(vector(each("value")).alias("value")).mapInPandas(frames, "value string")
    ctx.sink(seen, topic=ctx.params["output"], name="stateless")
    words = lines.groupBy("value").agg(F.count("*").alias("n"))
    counted = words.select(F.concat_ws(" ", "value", "n").alias("value")).mapInPandas(frames, "value string")
    ctx.sink(counted, topic=ctx.params["counts"], name="counts", mode="update")
