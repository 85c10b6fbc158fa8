"""The benchmarks' job on Clonos; the parameter ``kind`` says what it computes."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DoubleType, StringType

import clonos


@F.pandas_udf(BinaryType())
def marked(values: pd.Series) -> pd.Series:
    """A little work on each row, in pandas."""
    return values.str.decode("utf-8").str.upper().str.encode("utf-8")


@clonos.udf("string")
def derived(partition: int, offset: int) -> str:
    """Clock, random number and id as a Clonos job asks for them."""
    key = (partition, offset)
    return f"{clonos.now().isoformat()} {clonos.random(key)} {clonos.uuid4(key)}"


@F.udf(StringType(), useArrow=True)
def raw(partition: int, offset: int) -> str:
    """The same from Python's own modules."""
    return f"{datetime.now(UTC).isoformat()} {random.random()} {uuid.uuid4()}"


def _answer(key: str) -> float:
    """Stands for an answer from outside; instantaneous, so that only its recording costs."""
    return len(key) * 1.5


rate = clonos.service(name="rate")(_answer)


_answers: dict[str, float] = {}


@clonos.udf("double")
def rated(key: str) -> float:
    """Asks the service for each row; one argument in a hundred is new to its task."""
    return rate(key)


@F.udf(DoubleType(), useArrow=True)
def cached(key: str) -> float:
    """Asks once for each argument in a task, as a careful user of plain Spark does."""
    if (known := _answers.get(key)) is None:
        known = _answers[key] = _answer(key)
    return known


def _column(kind: str) -> Column:
    text = F.col("value").cast("string")
    match kind:
        case "identity":
            return F.col("value")
        case "udf":
            return marked("value")
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
    """What is published of `records`."""
    return records.select("key", _column(kind).cast("binary").alias("value"))


@clonos.job(name="bench", params={"kind": "identity", "per_epoch": "0"})
def bench(ctx: clonos.JobContext) -> None:
    """Read, compute, publish."""
    per_epoch = int(ctx.params["per_epoch"])
    records = ctx.source(ctx.params["input"], max_per_epoch=per_epoch or None)
    ctx.sink(output(records, ctx.params["kind"]), topic=ctx.params["output"], name="out")
