"""Several records from one row, for one sink: one query, one evaluation of each service call, one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from clonos.errors import SpecError
from clonos.formats.poison import COLUMN, FANNED_OUT, HEADERS

_TYPES: Final = {
    "key": T.BinaryType(),
    "value": T.BinaryType(),
    "partition": T.IntegerType(),
    "headers": HEADERS,
    "timestamp": T.TimestampType(),
}
_ACCEPTED: Final[dict[str, tuple[type[T.DataType], ...]]] = {
    "key": (T.BinaryType, T.StringType),
    "value": (T.BinaryType, T.StringType),
    "partition": (T.IntegerType,),
    "headers": (T.ArrayType,),
    "timestamp": (T.TimestampType,),
}


@dataclass(frozen=True)
class Output:
    """The record that each row contributes to a topic.

    Args:
        value: The value, string or binary: a column or its name.
        key: The key, string or binary; None: no key.
        where: Condition, a column or SQL text. Rows for which it is false or null contribute no record to the topic.
        partition: Partition of the topic, an int; None: the partition of the key.
        headers: Array of structs of key and value; None: no headers.
        timestamp: Time of the record; None: the time at which it is sent.

    Example::

        clonos.Output(F.to_json("record"), key="device", where="score > 0.9")
    """

    value: Column | str
    key: Column | str | None = None
    where: Column | str | None = None
    partition: Column | str | None = None
    headers: Column | str | None = None
    timestamp: Column | str | None = None


def fan_out(frame: DataFrame, outputs: Mapping[str, Output]) -> DataFrame:
    """Turn each row into at most one record for each topic, all in one query and one transaction.

    Add the columns that ask a service or draw a random number to `frame` before the call: then each is computed once
    for a row, and all topics get the same value.

    Args:
        frame: A streaming DataFrame. Its column ``poison``, if it has one, is kept.
        outputs: Topic → the record for it.

    Returns:
        The records, with the columns of the Kafka sink: ``topic``, ``key``, ``value`` and those that `outputs` use. The
        records of one row follow each other in the order of `outputs`.

    Raises:
        SpecError: There is no output, or a column has another type than the Kafka sink accepts.

    Example::

        scored = orders.withColumn("score", score("customer", "amount"))
        records = clonos.fan_out(scored, {
            "scored": clonos.Output(F.to_json(F.struct("customer", "amount", "score")), key="customer"),
            "alerts": clonos.Output(F.to_json(F.struct("customer", "score")), key="customer", where="score > 0.9"),
        })
        ctx.sink(records, name="scored")
    """
    if not outputs:
        raise SpecError("clonos.fan_out got no topics.", hint='pass {"topic": clonos.Output(value, key=…)}.')
    names = [name for name in _TYPES if any(getattr(output, name) is not None for output in outputs.values())]
    for topic, output in outputs.items():
        _check_types(frame, topic, output)
    kept = [COLUMN] if COLUMN in frame.columns else []
    records = F.array_compact(F.array(*(_record(topic, output, names, kept) for topic, output in outputs.items())))
    # Two steps: Spark computes the columns of all records once, before it generates rows.
    rows = frame.select(records.alias(FANNED_OUT), *kept).select(F.explode_outer(FANNED_OUT).alias(FANNED_OUT), *kept)
    published = F.col(FANNED_OUT).isNotNull()
    if kept:
        published = F.col(COLUMN).isNotNull() | published
    return rows.where(published).select(*(f"{FANNED_OUT}.{name}" for name in ("topic", *names)), *kept)


def _record(topic: str, output: Output, names: list[str], kept: list[str]) -> Column:
    """Return the record as a struct; null if the row has none for this topic."""
    parts = {name: _column(getattr(output, name)).cast(_TYPES[name]).alias(name) for name in names}
    record = F.struct(F.lit(topic).alias("topic"), *parts.values())
    wanted = F.lit(True) if output.where is None else _condition(output.where)
    for column in kept:
        wanted = F.col(column).isNull() & wanted
    return F.when(wanted, record)


def _column(column: Column | str | None) -> Column:
    if column is None:
        return F.lit(None)
    return F.col(column) if isinstance(column, str) else column


def _condition(where: Column | str) -> Column:
    return F.expr(where) if isinstance(where, str) else where


def _check_types(frame: DataFrame, topic: str, output: Output) -> None:
    columns = {name: getattr(output, name) for name in _TYPES if getattr(output, name) is not None}
    schema = frame.select(*(_column(column).alias(name) for name, column in columns.items())).schema
    for field in schema.fields:
        accepted = _ACCEPTED[field.name]
        if not isinstance(field.dataType, (*accepted, T.NullType)):
            kinds = " or ".join(kind.typeName() for kind in accepted)
            raise SpecError(
                f"The {field.name} for the topic {topic!r} is a {field.dataType.simpleString()}.",
                hint=f"cast it to {kinds}; several columns become one with to_json(struct(…)).",
            )
