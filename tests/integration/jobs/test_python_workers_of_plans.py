"""How many Python workers one task of a query uses at the same time: as many are warm in a standby."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from clonos.causal.shape import python_workers


def computed(frame: DataFrame) -> DataFrame:
    return frame.select(F.udf(lambda value: value + 1, "long")("id").alias("id"))


def mapped(frame: DataFrame) -> DataFrame:
    return frame.mapInArrow(lambda batches: batches, "id long")


@pytest.mark.parametrize(
    ("transform", "workers"),
    [
        (lambda frame: frame.filter("id > 3").groupBy("id").count(), 0),
        (computed, 1),
        (lambda frame: mapped(computed(frame)), 2),
        (lambda frame: mapped(computed(frame).repartition(2)), 1),
        (lambda frame: computed(mapped(computed(frame)).repartition("id").filter("id > 3")), 2),
        (lambda frame: computed(frame).groupBy("id").applyInPandas(lambda rows: rows, "id long"), 1),
        (lambda frame: computed(frame).union(mapped(computed(frame))).union(computed(frame)), 2),
    ],
)
def test_a_task_uses_a_worker_for_each_node_with_python_functions(
    spark: SparkSession, transform: Callable[[DataFrame], DataFrame], workers: int
) -> None:
    assert python_workers(transform(spark.range(10))) == workers
