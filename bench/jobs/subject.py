"""The benchmarks' job on Clonos; the parameter ``kind`` selects its computation."""

from __future__ import annotations

import random
import time
import uuid
from datetime import UTC, datetime

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import BinaryType, DoubleType, StringType

import clonos


@pandas_udf(BinaryType())  # type: ignore[call-overload, untyped-decorator]
def marked(values: pd.Series) -> pd.Series:
    """A small computation on each row, in pandas."""
    return values.str.decode("utf-8").str.upper().str.encode("utf-8")


@F.udf(BinaryType(), useArrow=True)
def shouted(value: bytes) -> bytes:
    """A small computation on each row, one row at a time."""
    return bytes(value).upper()


@F.udf(BinaryType(), useArrow=True)
def slow(value: bytes) -> bytes:
    """Some 2,500 rows per second in each task."""
    time.sleep(0.0003)
    return value


@clonos.udf("string")
def derived(partition: int, offset: int) -> str:
    """Clock, random number and id from Clonos."""
    key = (partition, offset)
    return f"{clonos.now().isoformat()} {clonos.random(key)} {clonos.uuid4(key)}"


@F.udf(StringType(), useArrow=True)
def raw(partition: int, offset: int) -> str:
    """Clock, random number and id from Python's modules."""
    return f"{datetime.now(UTC).isoformat()} {random.random()} {uuid.uuid4()}"


def _answer(key: str) -> float:
    """Replaces an external call, without delay, so that only the recording has a cost."""
    return len(key) * 1.5


rate = clonos.service(name="rate")(_answer)


_answers: dict[str, float] = {}


@clonos.udf("double")
def rated(key: str) -> float:
    """Calls the service for each row; one argument in a hundred is new to its task."""
    return rate(key)


@F.udf(DoubleType(), useArrow=True)
def cached(key: str) -> float:
    """Calls the service once per argument and task, as an optimised job on plain Spark would."""
    if (known := _answers.get(key)) is None:
        known = _answers[key] = _answer(key)
    return known


def _column(kind: str) -> Column:
    text = F.col("value").cast("string")
    match kind:
        case "identity":
            return F.col("value")
        case "udf":
            column: Column = marked("value")
            return column
        case "python":
            return shouted("value")
        case "slow":
            return slow("value")
        case "derived":
            return F.concat_ws(" ", text, derived("partition", "offset"))
        case "raw":
            return F.concat_ws(" ", text, raw("partition", "offset"))
        case "service":
            return F.concat_ws(" ", text, rated(F.col("key").cast("string")).cast("string"))
        case "cached":
            return F.concat_ws(" ", text, cached(F.col("key").cast("string")).cast("string"))
    raise ValueError(f"no such kind {kind!r}")


def output(records: DataFrame, kind: str) -> DataFrame:
    """The published columns of `records`."""
    return records.select("key", _column(kind).cast("binary").alias("value"))


@clonos.job(name="bench", params={"kind": "identity", "per_epoch": "0"})
def bench(ctx: clonos.JobContext) -> None:
    """Read, compute, publish."""
    per_epoch = int(ctx.params["per_epoch"])
    records = ctx.source(ctx.params["input"], max_per_epoch=per_epoch or None)
    if ctx.params["kind"] == "counts":
        value = F.col("count").cast("string").alias("value")
        counts = records.groupBy("key").count().select("key", value)
        ctx.sink(counts, topic=ctx.params["output"], name="out", mode="update")
        return
    ctx.sink(output(records, ctx.params["kind"]), topic=ctx.params["output"], name="out")
