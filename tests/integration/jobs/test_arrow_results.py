"""Arrow columns that Python functions return arrive as equal values, or are refused by name, column and types."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Column, SparkSession

import clonos
from clonos.carried_errors import uncarry_failure
from clonos.errors import JobCodeError

AT: Final = dt.datetime(2020, 1, 2, 3, 4, 5, 6)
UTC: Final = "UTC"
EXACT: Final[list[tuple[str, pa.Array, Any]]] = [
    ("timestamp", pa.array([AT], pa.timestamp("us", "Europe/Berlin")), AT),
    ("timestamp_ntz", pa.array([AT], pa.timestamp("us")), AT),
    ("time(6)", pa.array([dt.time(1, 2, 3)], pa.time64("ns")), dt.time(1, 2, 3)),
    ("interval day to second", pa.array([dt.timedelta(1)], pa.duration("us")), dt.timedelta(1)),
    ("date", pa.array([dt.date(2020, 1, 2)]), dt.date(2020, 1, 2)),
    ("decimal(10,4)", pa.array([Decimal("1.23")]), Decimal("1.2300")),
    ("string", pa.array(["a"], pa.large_string()), "a"),
    ("binary", pa.array([b"a"], pa.large_binary()), b"a"),
    ("date", pa.nulls(1), None),
    ("array<int>", pa.array([[5]], pa.list_(pa.int32())), [5]),
    ("struct<a:int>", pa.array([{"other": 5}], pa.struct([("other", pa.int32())])), {"a": 5}),
]
CAST: Final = [
    ("int", pa.array([5]), 5),
    ("double", pa.array([5]), 5.0),
    ("timestamp", pa.array([AT], pa.timestamp("ns", UTC)), AT),
    ("float", pa.array([0.1]), pytest.approx(0.1)),
    ("int", pa.array(["5"]), 5),
]
PANDAS: Final[list[tuple[str, Any]]] = [
    ("timestamp", AT),
    ("timestamp_ntz", AT),
    ("timestamp", AT.replace(tzinfo=dt.UTC)),
    ("date", dt.date(2020, 1, 2)),
    ("date", dt.datetime(2020, 1, 2)),
    ("array<timestamp>", [AT]),
    ("decimal(10,4)", Decimal("1.23")),
    ("array<int>", [1, 2]),
    ("map<string,int>", {"a": 1}),
    ("string", "a"),
    ("boolean", True),
    ("interval day to second", dt.timedelta(1)),
    ("double", 1),
    ("int", None),
]
EXPECTED: Final = [
    value.replace(tzinfo=None) if kind == "timestamp" else dt.date(2020, 1, 2) if kind == "date" else value
    for kind, value in PANDAS
]


def refused(failure: BaseException) -> JobCodeError:
    error = uncarry_failure(failure)
    assert type(error) is JobCodeError, failure
    return error


def schema(kinds: list[str]) -> str:
    """A column of each type."""
    return ", ".join(f"c{number} {kind}" for number, kind in enumerate(kinds))


def test_columns_of_an_equal_meaning_arrive(spark: SparkSession) -> None:
    def answers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            arrays = [array for _, array, _ in EXACT]
            yield pa.RecordBatch.from_arrays(arrays, [f"c{number}" for number in range(len(arrays))])

    rows = spark.range(1).coalesce(1).mapInArrow(answers, schema([kind for kind, *_ in EXACT]))
    # Not through Arrow or pickles, which may refuse another type than the plan reads.
    (row,) = rows.collect()
    assert [got.asDict() if hasattr(got, "asDict") else got for got in row] == [value for *_, value in EXACT]


def test_arrow_udfs_cast_values_that_stay_equal(spark: SparkSession) -> None:
    def column(number: int) -> Column:
        kind, array, _ = CAST[number]

        @clonos.arrow_udf(kind, name=f"answers{number}")
        def answers(ids: pa.Array) -> pa.Array:
            return array[: len(ids)]

        return answers("id")

    (row,) = spark.range(1).coalesce(1).select(*map(column, range(len(CAST)))).collect()
    assert list(row) == [value for *_, value in CAST]


@pytest.mark.parametrize("shape", ["udf", "group"])
def test_pandas_values_of_an_equal_meaning_arrive(spark: SparkSession, shape: str) -> None:
    def column(number: int) -> Column:
        kind, value = PANDAS[number]

        @clonos.pandas_udf(kind, name=f"answers{number}")
        def answers(ids: pd.Series) -> pd.Series:
            return pd.Series([value] * len(ids))

        return answers("id")

    rows = spark.range(1).coalesce(1)
    if shape == "udf":
        frame = rows.select(*map(column, range(len(PANDAS))))
    else:
        values = {f"c{number}": pd.Series([value]) for number, (_, value) in enumerate(PANDAS)}
        operator = clonos.operator(lambda _group: pd.DataFrame(values), name="answers")
        frame = rows.groupBy("id").applyInPandas(operator, schema([kind for kind, _ in PANDAS]))
    (row,) = frame.collect()
    assert list(row) == EXPECTED


@pytest.mark.parametrize("shape", ["map", "group", "cogroup", "udf", "pandas", "frames"])
def test_the_refusal_names_the_operator(spark: SparkSession, shape: str) -> None:
    """A function of each kind; `tests/unit/spark/test_checked_results.py` has the types that are refused."""

    def number(_rows: Any) -> Any:
        return pa.table({"id": [1], "at": pa.array([5])})

    def numbers(batches: Any) -> Any:
        return (batch for rows in batches for batch in number(rows).to_batches())

    @clonos.arrow_udf("timestamp", name="stamp")
    def column(values: pa.Array) -> pa.Array:
        return values

    @clonos.pandas_udf("timestamp", name="stamp")
    def series(values: pd.Series) -> pd.Series:
        return values

    def named(function: Any) -> Any:
        return clonos.operator(function, name="stamp")

    rows, declared = spark.range(1).coalesce(1), "id bigint, at timestamp"
    frame = {
        "map": lambda: rows.mapInArrow(named(numbers), declared),
        "group": lambda: rows.groupBy("id").applyInArrow(named(lambda rows: number(rows)), declared),
        "cogroup": lambda: (
            rows.groupBy("id")
            .cogroup(rows.groupBy("id"))
            .applyInArrow(named(lambda left, right: number(left)), declared)
        ),
        "udf": lambda: rows.select(column("id").alias("at")),
        "pandas": lambda: rows.select(series("id").alias("at")),
        "frames": lambda: rows.groupBy("id").applyInPandas(named(lambda rows: number(rows).to_pandas()), declared),
    }[shape]()
    with pytest.raises(Exception, match="clonos-error") as caught:
        frame.collect()
    what = refused(caught.value).what
    assert "stamp" in what
    assert ("its column" if shape in ("udf", "pandas") else "the column at") in what
    assert "as int64; the job declares timestamp, which is timestamp[us, tz=UTC]" in what


def test_fields_of_a_pandas_struct_may_have_any_order(spark: SparkSession) -> None:
    @clonos.pandas_udf("a int, b timestamp", name="answers")
    def answers(ids: pd.Series) -> pd.DataFrame:
        return pd.DataFrame({"b": [AT] * len(ids), "a": [1] * len(ids)})

    (row,) = spark.range(1).coalesce(1).select(answers("id").alias("got")).collect()
    assert row["got"].asDict() == {"a": 1, "b": AT}
