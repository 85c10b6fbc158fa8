"""Values on their way between Arrow, Python and other types: unchanged, or refused with their column.

Arrow, fastavro and Protobuf cut, wrap and round numbers that do not fit: 1.9 becomes the integer 1.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import struct
from collections.abc import Callable, Collection, ItemsView, Set
from typing import Any, Final

import numpy as np
import pyarrow as pa

from clonos.errors import JobCodeError

Fit = Callable[[Any], Any]
"""Returns a value as its target holds it, equal to the argument; raises `Unfit` if the target cannot hold it."""

READABLE: Final = (
    "give it valid values: test text with F.is_valid_utf8, repair it with F.make_valid_utf8, or pass the binary "
    "column; limit times to the years 1 to 9999."
)
_SHOWN_CHARACTERS: Final = 100
_FLOAT: Final = struct.Struct("<f")


class Unfit(ValueError):
    """A value that its target cannot hold unchanged.

    Args:
        value: The value.
        wanted: What the target holds, such as ``an integer of 32 bits``.
        path: The path of the field from the record, such as ``.lines[1].count``.
    """

    def __init__(self, value: object, wanted: str, path: str = "") -> None:
        super().__init__(value, wanted, path)
        self.value = value
        self.wanted = wanted
        self.path = path

    def inside(self, step: str) -> Unfit:
        """Return the same for the record around it: `step` leads from that record to this one."""
        return Unfit(self.value, self.wanted, step + self.path)

    def __str__(self) -> str:
        where = self.path.removeprefix(".") or "the value"
        return f"{where} takes {self.wanted}, not {shown(self.value)}"


def shown(value: object) -> str:
    """Return a short text of a value that any encoding can hold."""
    text = ascii(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def integer(bits: int, *, signed: bool = True) -> Fit:
    """Fit whole numbers of `bits` bits. A float or decimal without a fraction fits."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    wanted = f"{'an integer' if signed else 'an unsigned integer'} of {bits} bits"

    def fit(value: Any) -> int:
        if type(value) is int and low <= value <= high:
            return value
        if isinstance(value, int | float | decimal.Decimal | np.integer | np.floating) and not isinstance(value, bool):
            finite = math.isfinite(value)
            if finite and value == (whole := int(value)) and low <= whole <= high:
                return whole
        raise Unfit(value, wanted)

    return fit


def double(value: Any) -> float:
    """Fit numbers of 64 bits; an integer or decimal fits if a double holds it without rounding."""
    if type(value) is float:
        return value
    if isinstance(value, int | float | decimal.Decimal | np.integer | np.floating) and not isinstance(value, bool):
        try:
            number = float(value)
        except (OverflowError, ValueError) as error:
            raise Unfit(value, "a double") from error
        if number == value or number != number:
            return number
    raise Unfit(value, "a double without rounding")


def single(value: Any) -> float:
    """Fit numbers of 32 bits without rounding. A column of Spark's type ``float`` always fits."""
    number = double(value)
    if number == number and _rounded(number, value) != number:
        raise Unfit(value, "a float of 32 bits without rounding (cast the column to float to round it)")
    return number


def rounded_single(value: Any) -> float:
    """Fit numbers that 32 bits hold after rounding; larger ones would become infinite."""
    number = double(value)
    _rounded(number, value)
    return number


def _rounded(number: float, value: object) -> float:
    try:
        rounded: float = _FLOAT.unpack(_FLOAT.pack(number))[0]
    except OverflowError as error:
        raise Unfit(value, "a float of 32 bits") from error
    return rounded


def instance(kind: type, wanted: str, but: type | None = None) -> Fit:
    """Fit the instances of `kind` that are not instances of `but`."""

    def fit(value: Any) -> Any:
        if not isinstance(value, kind) or (but is not None and isinstance(value, but)):
            raise Unfit(value, wanted)
        return value

    return fit


boolean: Final = instance(bool, "a boolean")
text: Final = instance(str, "text")
binary: Final = instance(bytes, "binary")
date: Final = instance(dt.date, "a date", but=dt.datetime)


def items(fit: Fit) -> Fit:
    """Fit the items of a list."""

    def fit_list(values: Any) -> list[Any]:
        if not isinstance(values, list | tuple | np.ndarray):
            raise Unfit(values, "an array")
        fitted = []
        for index, value in enumerate(values):
            try:
                fitted.append(fit(value))
            except Unfit as error:
                raise error.inside(f"[{index}]") from None
        return fitted

    return fit_list


def entries(fit: Fit) -> Fit:
    """Fit the values of a dict."""

    def fit_dict(values: Any) -> dict[Any, Any]:
        if not isinstance(values, dict):
            raise Unfit(values, "a map")
        return {key: at(f"[{shown(key)}]", fit, value) for key, value in values.items()}

    return fit_dict


def at(step: str, fit: Fit, value: Any) -> Any:
    """Fit `value`; an error names `step` in its path."""
    try:
        return fit(value)
    except Unfit as error:
        raise error.inside(step) from None


def from_arrow(array: pa.Array, reader: str, name: str, start: int = 0) -> list[Any]:
    """Return the Python values of a column.

    Args:
        array: The column of a batch.
        reader: Who reads it, for the error's text, such as ``The UDF shop.score``.
        name: The column's name.
        start: Number of rows of the task before this batch.

    Raises:
        JobCodeError: Python cannot hold a value: text that is not UTF-8, a time beyond the year 9999.
    """
    try:
        values: list[Any] = array.to_pylist(maps_as_pydicts="strict")
    except Exception as failure:
        for index, value in enumerate(array):
            path, bad = _unreadable(value, name)
            if path:
                raise JobCodeError(
                    f"{reader} cannot read {path} of row {start + index} of its task: {bad}.",
                    hint=READABLE,
                ) from failure
        raise JobCodeError(f"{reader} cannot read {name}: {type(failure).__name__}: {failure}.") from failure
    return values


def _unreadable(value: pa.Scalar, path: str) -> tuple[str, str]:
    """Path and description of the first value in `value` that Python cannot hold; empty without one."""
    try:
        value.as_py(maps_as_pydicts="strict")
    except Exception as error:
        parts: list[tuple[str, Any]] = []
        if isinstance(value, pa.StructScalar):
            parts = [(f"{path}.{field.name}", value[index]) for index, field in enumerate(value.type)]
        elif isinstance(value, pa.MapScalar):
            parts = [
                (f"{path}[{number}].{part}", entry[part])
                for number, entry in enumerate(value.values)
                for part in (0, 1)
            ]
        elif isinstance(value, pa.ListScalar):
            parts = [(f"{path}[{index}]", item) for index, item in enumerate(value.values)]
        for name, part in parts:
            unreadable = _unreadable(part, name)
            if unreadable[0]:
                return unreadable
        if isinstance(value, pa.StringScalar | pa.LargeStringScalar):
            return path, f"{shown(value.as_buffer().to_pybytes())} is not valid UTF-8"
        raw = (
            f"{value.value} in {value.type}" if isinstance(value, pa.TimestampScalar | pa.Date32Scalar) else value.type
        )
        return path, f"{raw}: {error}"
    return "", ""


def of_arrow(kind: pa.DataType) -> Fit | None:
    """Return the fit for values that ``pyarrow.array`` converts to `kind`; None if pyarrow never changes a value."""
    if pa.types.is_signed_integer(kind):
        return _nullable(integer(kind.bit_width))
    if pa.types.is_float32(kind):
        return _nullable(rounded_single)
    if pa.types.is_float64(kind):
        return _nullable(double)
    if pa.types.is_date(kind):
        return _nullable(date)
    if pa.types.is_timestamp(kind):
        return _nullable(_microseconds)
    if pa.types.is_list(kind):
        return _nullable(_array_of(of_arrow(kind.value_type) or _any))
    if pa.types.is_map(kind):
        return _nullable(_map_of(of_arrow(kind.key_type) or _any, of_arrow(kind.item_type) or _any))
    if pa.types.is_struct(kind):
        fits = [(field.name, of_arrow(field.type)) for field in kind]
        if any(fit is not None for _, fit in fits):
            return _nullable(_fields_of([(name, fit or _any) for name, fit in fits]))
    return None


def unchanged(kind: pa.DataType) -> set[type]:
    """Return the types of values that ``pyarrow.array`` converts to `kind` unchanged, or refuses itself."""
    if pa.types.is_signed_integer(kind):
        return {int, type(None)}
    if pa.types.is_float64(kind):
        return {float, int, type(None)}
    if pa.types.is_date(kind):
        return {dt.date, type(None)}
    return {dt.datetime, type(None)} if pa.types.is_timestamp(kind) else {type(None)}


def _nullable(fit: Fit) -> Fit:
    return lambda value: None if value is None else fit(value)


def _microseconds(value: Any) -> Any:
    if not isinstance(value, dt.date | np.datetime64) or getattr(value, "nanosecond", False):
        raise Unfit(value, "a datetime of whole microseconds")
    return value


def _any(value: Any) -> Any:
    return value  # pyarrow refuses what it cannot convert unchanged


def _array_of(item: Fit) -> Fit:
    fit = items(item)

    def fit_array(value: Any) -> Any:
        if isinstance(value, Set):  # the order of text in it differs between processes
            raise Unfit(value, "an array, and a set has no order")
        if not isinstance(value, Collection) or isinstance(value, str | bytes | dict):
            return value  # pyarrow judges others
        return fit(list(value))

    return fit_array


def _map_of(key: Fit, item: Fit) -> Fit:
    def fit(value: Any) -> Any:
        pairs = value.items() if isinstance(value, dict) else value
        if not isinstance(pairs, list | tuple | ItemsView):
            raise Unfit(value, "a map")
        for pair in pairs:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise Unfit(value, "a map")
            step = f"[{shown(pair[0])}]"
            at(step, key, pair[0])
            at(step, item, pair[1])
        return value

    return fit


def _fields_of(fields: list[tuple[str, Fit]]) -> Fit:
    def fit(value: Any) -> Any:
        if isinstance(value, dict):
            values = [value.get(name) for name, _ in fields]
        elif isinstance(value, tuple) and len(value) == len(fields):
            values = list(value)
        else:
            raise Unfit(value, f"a dict or a tuple of {len(fields)} fields")
        for (name, of_field), item in zip(fields, values, strict=True):
            at(f".{name}", of_field, item)
        return value

    return fit
