"""Arrow batches as Kafka records, and their digest."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from clonos.errors import SpecError
from clonos.extend.lanes import MultisetDigest
from clonos_sinks.kafka.rows import Row, check_schema, identity, rows_of

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
optional_bytes = st.none() | st.binary(max_size=8)
rows = st.builds(
    Row,
    st.sampled_from(["a", "b"]),
    optional_bytes,
    optional_bytes,
    st.none() | st.integers(0, 9),
    st.none() | st.lists(st.tuples(st.text("xy", max_size=2), optional_bytes), max_size=2).map(tuple),
    st.none() | st.integers(0, 2**41),
)


def digest(records: list[Row]) -> bytes:
    digest = MultisetDigest()
    for record in records:
        digest.add(identity(record))
    assert digest.records == len(records)
    return digest.value()


@given(st.lists(rows, max_size=12), st.randoms(use_true_random=False))
def test_digest_ignores_the_order(records: list[Row], shuffler: Any) -> None:
    shuffled = list(records)
    shuffler.shuffle(shuffled)
    assert digest(shuffled) == digest(records)
    assert len(digest(records)) == 16


@given(st.lists(rows, max_size=8), rows)
def test_digest_counts_duplicates(records: list[Row], extra: Row) -> None:
    """With an exclusive or, a pair of equal records would cancel out."""
    assert len({digest(records + [extra] * times) for times in range(4)}) == 4


@given(rows, rows)
def test_digest_differs_for_different_records(left: Row, right: Row) -> None:
    assert (digest([left]) == digest([right])) == (left == right)


def test_digest_covers_each_field_and_null() -> None:
    base = Row("t", b"k", b"v", 0, (("h", b"x"),), 5)
    others = [
        base._replace(topic="u"),
        base._replace(key=None),
        base._replace(key=b""),
        base._replace(value=None),
        base._replace(partition=None),
        base._replace(headers=None),
        base._replace(headers=()),
        base._replace(headers=(("h", None),)),
        base._replace(timestamp=None),
    ]
    assert len({digest([row]) for row in [base, *others]}) == 10


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    "valid",
    [
        schema(value=StringType()),
        schema(key=BinaryType(), value=BinaryType()),
        schema(
            value=StringType(), topic=StringType(), partition=IntegerType(), headers=HEADERS, timestamp=TimestampType()
        ),
        schema(value=StringType(), partition=LongType()),
    ],
)
def test_valid_columns_are_accepted(valid: StructType) -> None:
    check_schema(valid, default_topic="t")


@pytest.mark.parametrize(
    ("invalid", "column"),
    [
        (schema(value=StringType(), colour=StringType()), "'colour'"),
        (schema(value=DoubleType()), "'value' is a double"),
        (schema(value=StringType(), key=LongType()), "'key' is a bigint"),
        (schema(value=StringType(), topic=BinaryType()), "'topic' is a binary"),
        (schema(value=StringType(), partition=StringType()), "'partition' is a string"),
        (schema(value=StringType(), timestamp=LongType()), "'timestamp' is a bigint"),
        (schema(value=StringType(), headers=StringType()), "'headers' is a string"),
        (schema(key=StringType()), "'value'"),
        (schema(Value=StringType()), "'Value'"),
    ],
)
def test_invalid_column_is_named(invalid: StructType, column: str) -> None:
    with pytest.raises(SpecError, match=column) as refused:
        check_schema(invalid, default_topic="t")
    assert refused.value.hint


def test_topic_comes_from_the_column_or_the_default() -> None:
    check_schema(schema(value=StringType(), topic=StringType()), default_topic=None)
    with pytest.raises(SpecError, match="names no topic"):
        check_schema(schema(value=StringType()), default_topic=None)


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def test_rows_with_a_value_only() -> None:
    records = list(rows_of(batch(value=pa.array(["ä", None])), "out"))
    assert records == [Row("out", None, "ä".encode(), None, None, None), Row("out", None, None, None, None, None)]


def test_rows_with_all_columns_in_any_order() -> None:
    at = dt.datetime(2024, 5, 6, 7, 8, 9, 123_999, tzinfo=dt.UTC)
    headers_type = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    records = list(
        rows_of(
            batch(
                timestamp=pa.array([at, None], pa.timestamp("us", tz="Europe/Berlin")),
                headers=pa.array([[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None], headers_type),
                partition=pa.array([3, None], pa.int32()),
                topic=pa.array(["elsewhere", None]),
                value=pa.array([b"v", b""], pa.binary()),
                key=pa.array(["k", None]),
            ),
            "out",
        )
    )
    whole_ms = int(at.replace(microsecond=0).timestamp()) * 1000 + 123
    assert records == [
        Row("elsewhere", b"k", b"v", 3, (("h", b"1"), ("h", None)), whole_ms),
        Row("out", None, b"", None, None, None),
    ]


def test_row_without_a_topic_is_refused() -> None:
    with pytest.raises(SpecError, match="A row names no topic"):
        list(rows_of(batch(value=pa.array(["v"]), topic=pa.array([None], pa.string())), None))


def test_empty_batch_has_no_rows() -> None:
    assert list(rows_of(batch(value=pa.array([], pa.string())), "out")) == []
