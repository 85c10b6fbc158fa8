"""The columns of a frame that becomes Kafka records."""

from __future__ import annotations

import pytest
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
from clonos.formats.poison import POISON
from clonos_sinks.kafka.columns import check_schema

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


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


def test_poison_column_of_another_type_is_refused() -> None:
    check_schema(schema(value=BinaryType(), poison=POISON), default_topic="t")
    for wrong in (StructType(POISON.fields[1:]), StringType()):
        with pytest.raises(SpecError, match="'poison'"):
            check_schema(schema(value=BinaryType(), poison=wrong), default_topic="t")
