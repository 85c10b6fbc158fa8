"""Which queries need no epochs without input: those in which such an epoch would only remove old state."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from clonos.causal.shape import only_evicts


def windows(frame: DataFrame) -> DataFrame:
    return frame.groupBy(F.window("timestamp", "5 seconds"), "value").count()


def joined(frame: DataFrame) -> DataFrame:
    table = frame.sparkSession.range(3).withColumnRenamed("id", "value")
    return frame.dropDuplicates(["value"]).join(table, "value")


def joined_streams(frame: DataFrame) -> DataFrame:
    return frame.join(frame.select(F.col("value").alias("other")), F.expr("value = other"))


def timed(frame: DataFrame) -> DataFrame:
    schema = "value long"
    return frame.groupBy("value").applyInPandasWithState(
        lambda _key, rows, _state: rows, schema, schema, "append", "EventTimeTimeout"
    )


@pytest.mark.parametrize(
    ("transform", "mode", "expected"),
    [
        (windows, "update", True),
        (windows, "append", False),
        (windows, "complete", False),
        (lambda frame: frame.select("value").distinct(), "update", True),
        (lambda frame: frame.dropDuplicates(["value"]), "append", True),
        (lambda frame: frame.dropDuplicatesWithinWatermark(["value"]), "append", True),
        (lambda frame: windows(frame.dropDuplicates(["value", "timestamp"])), "append", False),
        (lambda frame: frame.filter("value > 3"), "append", False),
        (joined, "append", True),
        (joined_streams, "append", False),
        (timed, "append", False),
    ],
)
def test_epochs_without_input(
    spark: SparkSession, transform: Callable[[DataFrame], DataFrame], mode: str, expected: bool
) -> None:
    rates = spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")
    assert only_evicts(transform(rates), mode) is expected
