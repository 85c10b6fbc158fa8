"""Converts Spark types to Python types, so that msgspec checks each decoded record."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Final, NotRequired, Required, TypedDict, TypeVar

import msgspec
import numpy as np
from pyspark.sql import types as T

from clonos.causal import exact
from clonos.errors import SpecError
from clonos.formats.codec import Undecodable

R = TypeVar("R")

_DEEPEST: Final = 900  # Python's limit is 1000
_JSON_TEXT: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


class _Judged(type):
    """Types that msgspec passes to `_judge` with the undecoded value, whose result may have any type."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


class _Single(metaclass=_Judged):
    """JSON: a number, rounded to 32 bits."""


class _Time(metaclass=_Judged):
    """JSON: a time in any extended form of ISO 8601."""


class _LocalTime(metaclass=_Judged):
    """JSON: the same without an offset."""


class _ExactSingle(metaclass=_Judged):
    """Avro and Protobuf: a number that 32 bits hold."""


class _ExactDouble(metaclass=_Judged):
    """Avro and Protobuf: a number that 64 bits hold."""


_NATIVE_FLOATS: Final[dict[type[T.DataType], type]] = {T.FloatType: _ExactSingle, T.DoubleType: _ExactDouble}
_INTEGERS: Final[dict[type[T.DataType], int]] = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
# JSON: whole numbers that may be written with a fraction of zero.
_WHOLE: Final = {kind: _Judged(f"Whole{bits}", (), {}) for kind, bits in _INTEGERS.items()}
# Forms in which other producers write JSON: Java leaves out seconds that are zero; pandas and JavaScript write 7.0.
_TOLERANT: Final[dict[type[T.DataType], type]] = {**_WHOLE, T.TimestampType: _Time, T.TimestampNTZType: _LocalTime}
_ISO_TIME: Final = re.compile(
    r"(?P<minutes>[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2})(?P<seconds>:[0-9]{2})?(?:[.,](?P<fraction>[0-9]+))?"
    r"(?P<offset>[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)


def _time(value: Any, kind: Any = dt.datetime) -> dt.datetime:
    """Return the time of a text of ISO 8601, whose seconds and minutes of the offset may be missing."""
    form = _ISO_TIME.fullmatch(value) if isinstance(value, str) else None
    if form is None or (form["fraction"] and not form["seconds"]):
        raise exact.Unfit(value, "a time of ISO 8601")
    offset = form["offset"] or ""
    minutes = ":00" if len(offset) == len("+02") else ""
    text = f"{form['minutes']}{form['seconds'] or ':00'}.{form['fraction'] or '0'}{offset}{minutes}"
    time: dt.datetime = msgspec.convert(text, kind)
    return time


def _single(value: Any) -> float:
    """Return the number of 32 bits next to a number of JSON, which has neither NaN nor infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float | decimal.Decimal):
        raise exact.Unfit(value, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise exact.Unfit(value, "a finite float of 32 bits")
    return exact.rounded_single(number)


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
_JUDGES: Final[dict[type, exact.Fit]] = {
    _Single: _single,
    _Time: _time,
    _LocalTime: lambda value: _time(value, _PLAIN[T.TimestampNTZType]),
    **{_WHOLE[kind]: exact.integer(bits) for kind, bits in _INTEGERS.items()},
    _ExactSingle: exact.single,
    _ExactDouble: exact.double,
}
# Types that Avro and Protobuf codecs return themselves: text is not converted to bytes or dates.
_NATIVE: Final = (bytes, dt.datetime, dt.date, decimal.Decimal)


def python_type(spark: T.DataType, where: str = "the record", *, native: bool = False, tolerant: bool = False) -> Any:
    """Return the Python type for values of a Spark type; `where` is the path of the field, for error messages.

    `native` values come from an Avro or Protobuf codec instead of JSON. With `tolerant`, integers and times of JSON may
    have other forms.

    Raises:
        SpecError: Records cannot be decoded to the type.
    """
    forms = {"native": native, "tolerant": tolerant}
    if tolerant and type(spark) in _TOLERANT:
        return _TOLERANT[type(spark)]
    if isinstance(spark, T.StructType):
        # A field that a record lacks is null, unless the field is declared NOT NULL.
        fields = {
            field.name: NotRequired[python_type(field.dataType, f"{where}.{field.name}", **forms) | None]
            if field.nullable
            else Required[python_type(field.dataType, f"{where}.{field.name}", **forms)]
            for field in spark.fields
        }
        return TypedDict("Record", fields)  # type: ignore[operator]
    if isinstance(spark, T.ArrayType):
        item = python_type(spark.elementType, f"{where}[]", **forms)
        return list[item | None] if spark.containsNull else list[item]  # type: ignore[valid-type]
    if isinstance(spark, T.MapType):
        if not isinstance(spark.keyType, T.StringType | T.BooleanType) and type(spark.keyType) not in _INTEGERS:
            raise SpecError(f"{where} has keys of type {spark.keyType.simpleString()}.", hint="use string keys.")
        key = python_type(spark.keyType, where)
        item = python_type(spark.valueType, f"{where}{{}}", **forms)
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
    """Return a function that decodes JSON text to a dict of the Spark type `spark`."""
    strict = msgspec.json.Decoder(python_type(spark), dec_hook=_judge).decode
    tolerant = msgspec.json.Decoder(
        python_type(spark, tolerant=True), dec_hook=_judge, float_hook=decimal.Decimal
    ).decode

    def decode(value: bytes) -> Any:
        try:
            return strict(value)
        except msgspec.ValidationError as error:
            try:
                return tolerant(value)
            except msgspec.ValidationError:
                raise error from None

    return lambda value: nested(decode, value)


def nested(decode: Callable[[bytes], R], value: bytes) -> R:
    """Decode JSON of any nesting up to 900 levels (else `Undecodable`), however deep the calls around it are."""
    if value.count(b"[") + value.count(b"{") > _DEEPEST and _depth(value) > _DEEPEST:
        raise Undecodable(f"is nested deeper than {_DEEPEST} levels")
    try:
        return decode(value)
    except RecursionError:
        return on_fresh_stack(decode, value)


def on_fresh_stack(decode: Callable[[bytes], R], value: bytes) -> R:
    """Call `decode` in a new thread, where no other calls count for Python's limit."""
    with ThreadPoolExecutor(1, "clonos-decode") as thread:
        return thread.submit(decode, value).result()


def _depth(value: bytes) -> int:
    signs = np.frombuffer(_JSON_TEXT.sub(b"", value), np.uint8)
    steps = np.isin(signs, list(b"[{")).astype(int) - np.isin(signs, list(b"]}"))
    return int(steps.cumsum().max(initial=0))


def converter(spark: T.StructType) -> Callable[[Any], Any]:
    """Return a function that converts a value of an Avro or Protobuf codec to a dict of the Spark type `spark`."""
    shape = python_type(spark, native=True)
    return lambda value: msgspec.convert(value, shape, builtin_types=_NATIVE, dec_hook=_judge)


def _judge(kind: type, value: Any) -> Any:
    return _JUDGES[kind](value)
