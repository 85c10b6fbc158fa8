"""Arrow columns that Python functions return arrive as equal values, or are refused by name, column and types."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import clonos
from clonos.carried_errors import uncarry_failure
from clonos.errors import JobCodeError

AT: Final = dt.datetime(2020, 1, 2, 3, 4, 5, 6)
UTC: Final = "UTC"
LAYOUTS: Final[list[tuple[str, pa.Array]]] = [
    # One physical layout, two meanings.
    ("timestamp", pa.array([1_606_800_000])),
    ("timestamp", pa.array([AT], pa.timestamp("us"))),
    ("timestamp", pa.array([dt.timedelta(days=1)], pa.duration("us"))),
    ("timestamp_ntz", pa.array([1_606_800_000])),
    ("timestamp_ntz", pa.array([AT], pa.timestamp("us", UTC))),
    ("bigint", pa.array([AT], pa.timestamp("us"))),
    ("bigint", pa.array([AT], pa.timestamp("us", UTC))),
    ("bigint", pa.array([dt.timedelta(days=1)], pa.duration("us"))),
    ("interval day to second", pa.array([5])),
    ("time(6)", pa.array([5])),
    ("bigint", pa.array([dt.time(1, 2, 3)], pa.time64("ns"))),
    ("date", pa.array([5], pa.int32())),
    ("int", pa.array([dt.date(2020, 1, 2)])),
    ("decimal(5,2)", pa.array([Decimal("1.239")])),
    ("decimal(5,2)", pa.array([Decimal("12345.67")])),
    ("int", pa.array([70, 80], pa.int32()).dictionary_encode()),
    ("array<timestamp>", pa.array([[5]])),
    ("map<string,date>", pa.array([[("a", 5)]], pa.map_(pa.string(), pa.int32()))),
    ("struct<at:timestamp>", pa.array([{"at": 5}])),
    ("struct<a:int,b:int>", pa.array([{"b": 1, "a": 2}], pa.struct([("b", pa.int32()), ("a", pa.int32())]))),
    # Other layouts, which Spark refuses without a name.
    ("int", pa.array([5])),
    ("double", pa.array([1.5], pa.float32())),
    ("string", pa.array(["a"]).dictionary_encode()),
    ("timestamp", pa.array([AT], pa.timestamp("ns", UTC))),
    ("bigint", pa.array([5], pa.uint64())),
]
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
IDS: Final = [f"{array.type}-for-{declared}" for declared, array, *_ in (*LAYOUTS, *EXACT)]


def returned(spark: SparkSession, array: pa.Array, declared: str) -> Any:
    def answers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_arrays([array[:1]], ["got"])

    rows = spark.range(1).coalesce(1).mapInArrow(answers, f"got {declared}")  # type: ignore[arg-type]
    # Not through Arrow or pickles, which may refuse another type than the plan reads.
    return rows.collect()[0]["got"]


def refused(failure: BaseException) -> JobCodeError:
    error = uncarry_failure(failure)
    assert type(error) is JobCodeError, failure
    return error


@pytest.mark.parametrize(("declared", "array"), LAYOUTS, ids=IDS[: len(LAYOUTS)])
def test_a_column_of_another_meaning_is_refused(spark: SparkSession, declared: str, array: pa.Array) -> None:
    with pytest.raises(Exception, match="clonos-error") as caught:
        returned(spark, array, declared)
    error = refused(caught.value)
    assert f"answers returned the column got as {array.type}; the job declares {declared}" in error.what


@pytest.mark.parametrize(("declared", "array", "value"), EXACT, ids=IDS[len(LAYOUTS) :])
def test_a_column_of_an_equal_meaning_arrives(spark: SparkSession, declared: str, array: pa.Array, value: Any) -> None:
    got = returned(spark, array, declared)
    assert (got.asDict() if hasattr(got, "asDict") else got) == value


def test_columns_in_another_order_are_refused(spark: SparkSession) -> None:
    def swapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"b": ["of b"], "a": ["of a"]})

    rows = spark.range(1).coalesce(1).mapInArrow(swapped, "a string, b string")  # type: ignore[arg-type]
    with pytest.raises(Exception, match="clonos-error") as caught:
        rows.collect()
    assert "swapped returned the columns ['b', 'a']; the job declares ['a', 'b']" in refused(caught.value).what


@pytest.mark.parametrize("shape", ["map", "group", "cogroup", "udf"])
def test_the_refusal_names_the_operator(spark: SparkSession, shape: str) -> None:
    def number(rows: Any) -> Any:
        return pa.table({"id": [1], "at": pa.array([5])})

    @clonos.arrow_udf("timestamp", name="stamp")
    def column(values: pa.Array) -> pa.Array:
        return values

    rows, schema = spark.range(1).coalesce(1), "id bigint, at timestamp"
    operator = clonos.operator(
        (lambda left, right: number(left))
        if shape == "cogroup"
        else (lambda batches: (batch for _ in batches for batch in number(_).to_batches()))
        if shape == "map"
        else number,
        name="stamp",
    )
    frame = {
        "map": lambda: rows.mapInArrow(operator, schema),
        "group": lambda: rows.groupBy("id").applyInArrow(operator, schema),
        "cogroup": lambda: rows.groupBy("id").cogroup(rows.groupBy("id")).applyInArrow(operator, schema),
        "udf": lambda: rows.select(column("id").alias("at")),
    }[shape]()
    with pytest.raises(Exception, match="clonos-error") as caught:
        frame.collect()
    what = refused(caught.value).what
    assert "stamp" in what
    assert ("its column" if shape == "udf" else "the column at") in what
    assert "as int64; the job declares timestamp, which is timestamp[us, tz=UTC]" in what


@pytest.mark.parametrize(
    ("declared", "array", "says"),
    [
        ("int", pa.array([5]), ""),
        ("double", pa.array([5]), ""),
        ("timestamp", pa.array([AT], pa.timestamp("ns", UTC)), ""),
        ("float", pa.array([0.1]), ""),
        ("int", pa.array(["5"]), ""),
        ("float", pa.array([1e300]), "with the value 1e+300"),
        ("decimal(5,2)", pa.array([0.125]), "with the value 0.125"),
        ("decimal(5,2)", pa.array([Decimal("1.239")]), "with the value Decimal"),
        ("int", pa.array([5 * 10**9]), "with the value 5000000000"),
        ("double", pa.array([2**53 + 1]), "with the value 9007199254740993"),
        ("date", pa.array([AT], pa.timestamp("us")), "as timestamp[us]; the job declares date"),
        ("bigint", pa.array([AT], pa.timestamp("us")), "as timestamp[us]; the job declares bigint"),
        ("timestamp", pa.array([AT], pa.timestamp("us")), "as timestamp[us]; the job declares timestamp"),
        ("array<timestamp>", pa.array([[5]]), "the items of its column as int64"),
    ],
)
def test_arrow_udfs_cast_only_values_that_stay_equal(
    spark: SparkSession, declared: str, array: pa.Array, says: str
) -> None:
    @clonos.arrow_udf(declared, name="answers")
    def answers(ids: pa.Array) -> pa.Array:
        return array[: len(ids)]

    rows = spark.range(1).coalesce(1).select(answers("id").alias("got"))
    if not says:
        assert F.col("got") is not None
        assert len(rows.collect()) == 1
        return
    with pytest.raises(Exception, match="clonos-error") as caught:
        rows.collect()
    assert says in refused(caught.value).what


PANDAS: Final[list[tuple[str, list[Any], str]]] = [
    ("timestamp", [5], "its column as int64; the job declares timestamp, which is"),
    ("timestamp", [Decimal(5)], "its column as decimal128"),
    ("timestamp", [None, 5.0], "its column as double"),
    ("date", [5], "its column as int64; the job declares date"),
    ("date", [AT], "its column as timestamp"),
    ("int", [Decimal("1.9")], "with the value Decimal"),
    ("array<int>", [[1.9]], "the items of its column as double with the value 1.9"),
    ("array<timestamp>", [[5]], "the items of its column as int64"),
    ("bigint", [AT], "its column as timestamp"),
    ("timestamp", [AT], ""),
    ("timestamp_ntz", [AT], ""),
    ("timestamp", [AT.replace(tzinfo=dt.UTC)], ""),
    ("date", [dt.date(2020, 1, 2)], ""),
    ("date", [dt.datetime(2020, 1, 2)], ""),
    ("array<timestamp>", [[AT]], ""),
    ("decimal(10,4)", [Decimal("1.23")], ""),
    ("array<int>", [[1, 2]], ""),
    ("map<string,int>", [{"a": 1}], ""),
    ("string", ["a"], ""),
    ("boolean", [True], ""),
    ("interval day to second", [dt.timedelta(1)], ""),
    ("double", [1], ""),
    ("int", [None], ""),
]


@pytest.mark.parametrize(("declared", "values", "says"), PANDAS)
@pytest.mark.parametrize("shape", ["udf", "group"])
def test_pandas_values_of_another_meaning_are_refused(
    spark: SparkSession, declared: str, values: list[Any], says: str, shape: str
) -> None:
    @clonos.pandas_udf(declared, name="answers")
    def answers(ids: pd.Series) -> pd.Series:
        return pd.Series(values[-1:] * len(ids))

    rows = spark.range(1).coalesce(1)
    if shape == "udf":
        frame = rows.select(answers("id").alias("got"))
    else:
        operator = clonos.operator(lambda _group: pd.DataFrame({"got": pd.Series(values[-1:])}), name="answers")
        frame = rows.groupBy("id").applyInPandas(operator, f"got {declared}")
    if not says:
        (row,) = frame.collect()
        expected = values[-1].replace(tzinfo=None) if declared == "timestamp" else values[-1]
        expected = dt.date(2020, 1, 2) if declared == "date" else expected
        assert row["got"] == expected
        return
    with pytest.raises(Exception, match="clonos-error") as caught:
        frame.collect()
    what = refused(caught.value).what
    assert "answers" in what
    assert (says if shape == "udf" else says.replace("its column", "the column got")) in what


def test_fields_of_a_pandas_struct_may_have_any_order(spark: SparkSession) -> None:
    @clonos.pandas_udf("a int, b timestamp", name="answers")
    def answers(ids: pd.Series) -> pd.DataFrame:
        return pd.DataFrame({"b": [AT] * len(ids), "a": [1] * len(ids)})

    (row,) = spark.range(1).coalesce(1).select(answers("id").alias("got")).collect()
    assert row["got"].asDict() == {"a": 1, "b": AT}
