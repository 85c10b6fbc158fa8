"""Checks the columns of the rows that become Kafka records (`clonos.RecordColumns` in Java converts them).

The columns are as in Spark's own Kafka sink: ``value``, and optionally ``key``, ``topic``, ``partition``,
``headers`` (array of structs of key and value) and ``timestamp``.
"""

from __future__ import annotations

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
