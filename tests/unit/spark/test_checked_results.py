"""Results of functions that Spark would read as other values are refused by name, column and types."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)
from pyspark.util import PythonEvalType

from clonos.carried_errors import CarriedError, uncarry
from clonos.errors import JobCodeError
from clonos.spark.arrow_results import checked

AT: Final = dt.datetime(2020, 1, 2, 3, 4, 5, 6)
UTC: Final = "UTC"
PAIR: Final = StructType().add("a", IntegerType()).add("b", IntegerType())
# By name: only a JVM parses names.
TYPES: Final = {
    kind.simpleString(): kind
    for kind in (
        *(TimestampType(), TimestampNTZType(), DateType(), TimeType(6), DayTimeIntervalType(0, 3)),
        *(IntegerType(), LongType(), FloatType(), DoubleType(), DecimalType(5, 2), StringType()),
        *(ArrayType(TimestampType()), ArrayType(IntegerType()), MapType(StringType(), DateType())),
        *(PAIR, StructType().add("at", TimestampType())),
    )
}
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
CASTS: Final[list[tuple[str, pa.Array, str]]] = [
    ("float", pa.array([1e300]), "with the value 1e+300"),
    ("decimal(5,2)", pa.array([0.125]), "with the value 0.125"),
    ("decimal(5,2)", pa.array([Decimal("1.239")]), "with the value Decimal"),
    ("int", pa.array([5 * 10**9]), "with the value 5000000000"),
    ("double", pa.array([2**53 + 1]), "with the value 9007199254740993"),
    ("date", pa.array([AT], pa.timestamp("us")), "as timestamp[us]; the job declares date"),
    ("bigint", pa.array([AT], pa.timestamp("us")), "as timestamp[us]; the job declares bigint"),
    ("timestamp", pa.array([AT], pa.timestamp("us")), "as timestamp[us]; the job declares timestamp"),
    ("array<timestamp>", pa.array([[5]]), "the items of its column as int64"),
]
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
]


def refused(result: Any, declared: DataType, kind: int) -> str:
    """The error of a function that Spark calls in this way."""

    def answers(_argument: Any) -> Any:
        return result

    check = checked(answers, declared, kind)
    with pytest.raises(CarriedError) as caught:
        list(check("rows"))
    error = uncarry(str(caught.value))
    assert type(error) is JobCodeError
    assert "The function answers " in error.what
    return error.what


@pytest.mark.parametrize(("declared", "array"), LAYOUTS, ids=[f"{array.type}-for-{kind}" for kind, array in LAYOUTS])
def test_a_column_of_another_meaning_is_refused(declared: str, array: pa.Array) -> None:
    batch = pa.RecordBatch.from_arrays([array[:1]], ["got"])
    what = refused([batch], StructType().add("got", TYPES[declared]), PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    assert f"answers returned the column got as {array.type}; the job declares {declared}" in what


def test_columns_in_another_order_are_refused() -> None:
    batch = pa.RecordBatch.from_pydict({"b": [1], "a": [2]})
    what = refused([batch], PAIR, PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    assert "returned the columns ['b', 'a']; the job declares ['a', 'b']" in what


@pytest.mark.parametrize(("declared", "array", "says"), CASTS)
def test_a_cast_that_changes_a_value_is_refused(declared: str, array: pa.Array, says: str) -> None:
    assert says in refused(array, TYPES[declared], PythonEvalType.SQL_SCALAR_ARROW_UDF)


@pytest.mark.parametrize(("declared", "values", "says"), PANDAS)
def test_pandas_values_of_another_meaning_are_refused(declared: str, values: list[Any], says: str) -> None:
    series = pd.Series(values[-1:])
    assert says in refused(series, TYPES[declared], PythonEvalType.SQL_SCALAR_PANDAS_UDF)
    rows, declared_rows = pd.DataFrame({"got": series}), StructType().add("got", TYPES[declared])
    what = refused(rows, declared_rows, PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF)
    assert says.replace("its column", "the column got") in what


def test_a_function_that_returns_no_arrow_data_stays_as_it_is() -> None:
    assert checked(len, StructType(), PythonEvalType.SQL_BATCHED_UDF) is len
