"""Arrow batches as Kafka records. Columns: ``value``, and optionally ``key``, ``topic``, ``partition``,
``headers`` (array of structs of key and value) and ``timestamp``, as in Spark's own Kafka sink.
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
    """One record to publish; None where Kafka's default applies."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None
    headers: Headers | None
    timestamp: int | None


identity: Final = msgspec.msgpack.Encoder().encode
"""All that a consumer can see of a record, as bytes; default timestamps are left out."""

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
        SpecError: Naming the column and what it may be.
    """
    for field in schema.fields:
        allowed = _ALLOWED.get(field.name)
        if allowed is None:
            raise SpecError(
                f"The Kafka sink does not know the column {field.name!r}.",
                hint=f"select only {', '.join(_ALLOWED)}; put the rest into value, as with to_json(struct(…)).",
            )
        if not isinstance(field.dataType, allowed):
            names = " or ".join(kind.typeName() for kind in allowed)
            raise SpecError(
                f"The column {field.name!r} is a {field.dataType.simpleString()}.", hint=f"cast it to {names}."
            )
    if POISON_COLUMN in schema.names and not same_columns(schema[POISON_COLUMN].dataType):
        raise SpecError(
            "The column 'poison' is not one that ctx.decode made.",
            hint="leave it as it is, or give yours another name.",
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
        # As bytes by Arrow, not one by one: what is done here in Python is most of what a record costs.
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
        [_headers(one) for one in column("headers")] if "headers" in names else absent,
        absent if stamps is None else stamps.to_pylist(),
    )


def _topics(named: list[str | None], default: str | None) -> list[str]:
    targets = [default if name is None else name for name in named]
    found = [target for target in targets if target is not None]
    if len(found) != len(targets):
        raise SpecError("A row names no topic.", kept="the epoch was not published.", hint="fill the column 'topic'.")
    return found


def _bytes(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode()


def _headers(value: object) -> Headers | None:
    if not isinstance(value, list):
        return None
    return tuple((str(one["key"]), _bytes(one["value"])) for one in value)
