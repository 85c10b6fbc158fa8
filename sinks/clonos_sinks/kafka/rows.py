"""Converts Arrow batches to Kafka records.

The columns are those of Spark's own Kafka sink: ``value``, and optionally ``key``, ``topic``, ``partition``,
``headers`` (array of structs of key and value) and ``timestamp``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from clonos.errors import SpecError
from clonos.formats.poison import COLUMN as POISON_COLUMN
from clonos.formats.poison import same_columns

Headers = tuple[tuple[str, bytes | None], ...]


class Row(NamedTuple):
    """One record to publish. A field that is None has Kafka's default."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None
    headers: Headers | None
    timestamp: int | None  # in ms since 1970


identity: Final = msgspec.msgpack.Encoder().encode
"""Encodes the parts of a record that a consumer sees; a default timestamp is left out."""

_TEXT = (StringType, BinaryType)
_ALLOWED: dict[str, tuple[type[DataType], ...]] = {
    "key": _TEXT,
    "value": _TEXT,
    "topic": (StringType,),
    "partition": (IntegerType, LongType),
    "timestamp": (TimestampType,),
    "headers": (ArrayType,),
    POISON_COLUMN: (StructType,),
}


def check_schema(schema: StructType, *, default_topic: str | None) -> None:
    """Refuse columns that cannot become Kafka records.

    Raises:
        SpecError: A column has an unknown name or type. The error names the column and the allowed types.
    """
    for field in schema.fields:
        allowed = _ALLOWED.get(field.name)
        if allowed is None:
            raise SpecError(
                f"The Kafka sink has no column {field.name!r}.",
                hint=f"select only {', '.join(_ALLOWED)}; put the rest into value, as with to_json(struct(…)).",
            )
        if not isinstance(field.dataType, allowed):
            names = " or ".join(kind.typeName() for kind in allowed)
            raise SpecError(
                f"The column {field.name!r} is a {field.dataType.simpleString()}.", hint=f"cast it to {names}."
            )
    if POISON_COLUMN in schema.names and not same_columns(schema[POISON_COLUMN].dataType):
        raise SpecError(
            "The column 'poison' does not come from ctx.decode.",
            hint="do not change that column, or rename yours.",
        )
    if "value" not in schema.names:
        raise SpecError(
            "The Kafka sink needs a column 'value'.", hint="for example to_json(struct('*')).alias('value')"
        )
    if default_topic is None and "topic" not in schema.names:
        raise SpecError("The sink names no topic.", hint="pass topic=… to ctx.sink, or select a column 'topic'.")


def rows_of(batch: pa.RecordBatch, default_topic: str | None) -> Iterator[Row]:
    """The records of one Arrow batch, in order."""
    names = batch.schema.names
    absent: list[Any] = [None] * batch.num_rows

    def column(name: str) -> list[Any]:
        return batch.column(names.index(name)).to_pylist() if name in names else absent

    def data(name: str) -> list[Any]:
        # Arrow converts whole columns: the Python work here is most of the cost of a record.
        return batch.column(names.index(name)).cast(pa.binary()).to_pylist() if name in names else absent

    stamps = (
        batch.column(names.index("timestamp")).cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
        if "timestamp" in names
        else None
    )
    return map(
        Row,
        _topics(column("topic"), default_topic),
        data("key"),
        data("value"),
        column("partition"),
        [_headers(headers) for headers in column("headers")] if "headers" in names else absent,
        absent if stamps is None else stamps.to_pylist(),
    )


def _topics(names: list[str | None], default: str | None) -> list[str]:
    topics = [topic for name in names if (topic := default if name is None else name) is not None]
    if len(topics) != len(names):
        raise SpecError("A row names no topic.", kept="the epoch was not published.", hint="fill the column 'topic'.")
    return topics


def _bytes(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode()


def _headers(value: object) -> Headers | None:
    if not isinstance(value, list):
        return None
    return tuple((str(header["key"]), _bytes(header["value"])) for header in value)
