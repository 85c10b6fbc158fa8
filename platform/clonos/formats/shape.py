"""Converts Spark types to Python types, with which msgspec checks each decoded record."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from typing import Annotated, Any, Final, NotRequired, Required, TypedDict

import msgspec
from pyspark.sql import types as T

from clonos.causal import exact
from clonos.errors import SpecError


class _Judged(type):
    """Types that msgspec passes to `_judge` with the undecoded value, whose result may have any type."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


class _Single(metaclass=_Judged):
    """JSON: a number, rounded to 32 bits."""


class _ExactSingle(metaclass=_Judged):
    """Avro and Protobuf: a number that 32 bits hold."""


class _ExactDouble(metaclass=_Judged):
    """Avro and Protobuf: a number that 64 bits hold."""


_JUDGES: Final[dict[type, exact.Fit]] = {
    _Single: lambda value: exact.rounded_single(value if isinstance(value, bool) else float(value)),
    _ExactSingle: exact.single,
    _ExactDouble: exact.double,
}
_NATIVE_FLOATS: Final[dict[type[T.DataType], type]] = {T.FloatType: _ExactSingle, T.DoubleType: _ExactDouble}
_INTEGERS: Final[dict[type[T.DataType], int]] = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
_PLAIN: Final[dict[type[T.DataType], Any]] = {
    T.BooleanType: bool,
    T.FloatType: _Single,
    T.DoubleType: float,
    T.StringType: str,
    T.BinaryType: bytes,
    T.DateType: dt.date,
    T.TimestampType: dt.datetime,
    T.TimestampNTZType: Annotated[dt.datetime, msgspec.Meta(tz=False)],
    T.DecimalType: decimal.Decimal,
}
# Types that Avro and Protobuf codecs return themselves: text is not converted to bytes or dates.
_NATIVE: Final = (bytes, dt.datetime, dt.date, decimal.Decimal)


def python_type(spark: T.DataType, where: str = "the record", *, native: bool = False) -> Any:
    """The Python type for values of a Spark type.

    Args:
        spark: The Spark type.
        where: Path of the field, for error messages.
        native: Whether values come from an Avro or Protobuf codec instead of JSON.

    Raises:
        SpecError: Records cannot be decoded to the type.
    """
    if isinstance(spark, T.StructType):
        # A field that a record lacks is null, unless the field is declared NOT NULL.
        fields = {
            field.name: NotRequired[python_type(field.dataType, f"{where}.{field.name}", native=native) | None]
            if field.nullable
            else Required[python_type(field.dataType, f"{where}.{field.name}", native=native)]
            for field in spark.fields
        }
        return TypedDict("Record", fields)  # type: ignore[operator]
    if isinstance(spark, T.ArrayType):
        item = python_type(spark.elementType, f"{where}[]", native=native)
        return list[item | None] if spark.containsNull else list[item]  # type: ignore[valid-type]
    if isinstance(spark, T.MapType):
        if not isinstance(spark.keyType, T.StringType | T.BooleanType) and type(spark.keyType) not in _INTEGERS:
            raise SpecError(f"{where} has keys of type {spark.keyType.simpleString()}.", hint="use string keys.")
        key = python_type(spark.keyType, where)
        item = python_type(spark.valueType, f"{where}{{}}", native=native)
        return dict[key, item | None] if spark.valueContainsNull else dict[key, item]  # type: ignore[valid-type]
    bits = _INTEGERS.get(type(spark))
    if bits:
        return Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]
    if native and type(spark) in _NATIVE_FLOATS:
        return _NATIVE_FLOATS[type(spark)]
    if isinstance(spark, T.DecimalType) and native:
        return decimal.Decimal | int
    plain = _PLAIN.get(type(spark))
    if plain is None:
        raise SpecError(
            f"{where} is declared {spark.simpleString()}, which records cannot be decoded to.",
            hint="use booleans, numbers, decimals, strings, binary, dates, timestamps, structs, arrays, maps.",
        )
    return plain


def json_decoder(spark: T.StructType) -> Callable[[bytes], Any]:
    """A function that decodes JSON text to a dict of the Spark type `spark`."""
    return msgspec.json.Decoder(python_type(spark), dec_hook=_judge).decode


def converter(spark: T.StructType) -> Callable[[Any], Any]:
    """A function that converts a value of an Avro or Protobuf codec to a dict of the Spark type `spark`."""
    shape = python_type(spark, native=True)
    return lambda value: msgspec.convert(value, shape, builtin_types=_NATIVE, dec_hook=_judge)


def _judge(kind: type, value: Any) -> Any:
    return _JUDGES[kind](value)
