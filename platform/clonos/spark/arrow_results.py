"""Columns that a Python function returns have the types that the job declares, or the task fails.

Spark reads the columns of ``mapInArrow`` by position and by their physical layout: int64 as a timestamp in
microseconds, the indices of a dictionary as its values, a decimal after rounding. It casts the result of an Arrow UDF,
with the same effect. It converts a pandas result value by value: a number to a time, `Decimal("1.9")` to the int 1. The
functions of this module check the types before Spark does.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.worker
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType
from pyspark.util import PythonEvalType

from clonos.carried_errors import carry
from clonos.causal.exact import shown
from clonos.causal.naming import shown_name
from clonos.causal.scope import live_epoch
from clonos.errors import JobCodeError
from clonos.spark.live_batches import each_batch

Function = Callable[..., Any]

# The functions of ``mapInArrow`` and ``mapInPandas`` → whether they return pandas objects.
_MAPPING: Final = {PythonEvalType.SQL_MAP_ARROW_ITER_UDF: False, PythonEvalType.SQL_MAP_PANDAS_ITER_UDF: True}

_HINT: Final = (
    "convert the column in the function, for example with .cast(pyarrow.int32()), or declare the type that the "
    "function returns; then run the changed job. " + JobCodeError.hint_default
)
_TEMPORAL: Final = (
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_duration,
    pa.types.is_interval,
    lambda kind: pa.types.is_timestamp(kind) and kind.tz is None,
    lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,
)
_read_command = pyspark.worker.read_command
_read_single_udf = pyspark.worker.read_single_udf


def install() -> None:
    """Check the results of all functions of this Python worker that return Arrow data."""
    pyspark.worker.read_single_udf = _read_checked  # type: ignore[assignment]


def same(returned: pa.DataType, declared: pa.DataType) -> bool:
    """Whether Spark reads each value of the type `returned` as the equal value of the type `declared`."""
    kinds = pa.types
    if kinds.is_null(returned):
        return True
    if kinds.is_string(declared) or kinds.is_large_string(declared):
        return bool(kinds.is_string(returned) or kinds.is_large_string(returned))
    if kinds.is_binary(declared) or kinds.is_large_binary(declared):
        return bool(kinds.is_binary(returned) or kinds.is_large_binary(returned))
    if kinds.is_timestamp(declared) and kinds.is_timestamp(returned):
        return bool(returned.unit == declared.unit and (returned.tz is None) == (declared.tz is None))
    if kinds.is_decimal128(declared) and kinds.is_decimal128(returned):
        whole_digits = [kind.precision - kind.scale for kind in (returned, declared)]
        return bool(returned.scale <= declared.scale and whole_digits[0] <= whole_digits[1])
    if kinds.is_list(declared) and kinds.is_list(returned):
        return same(returned.value_type, declared.value_type)
    if kinds.is_map(declared) and kinds.is_map(returned):
        return same(returned.key_type, declared.key_type) and same(returned.item_type, declared.item_type)
    if kinds.is_struct(declared) and kinds.is_struct(returned):
        return not _reordered(returned, declared) and all(
            same(is_now.type, wanted.type) for is_now, wanted in zip(returned, declared, strict=True)
        )
    return bool(returned == declared)


def _reordered(returned: Any, declared: Any) -> bool:
    """Whether fields that Spark matches by position are not the declared ones, or are in another order."""
    names = [[field.name for field in fields] for fields in (returned, declared)]
    return len(names[0]) != len(names[1]) or (names[0] != names[1] and sorted(names[0]) == sorted(names[1]))


class _Result:
    """What a function declares to return.

    Args:
        function: The function, as the job passes it to Spark.
        declared: The Spark type of its rows, or of its column.
        pandas: Whether it returns pandas objects. Spark reads their times without a zone in the zone of the session,
            and their structs by name.
    """

    def __init__(self, function: Function, declared: DataType, *, pandas: bool = False) -> None:
        self._pandas = pandas
        self._function = function
        self._name = getattr(function, "operator", None) or shown_name(function)
        self._spark: Any = declared
        self._arrow = to_arrow_type(declared, timezone="UTC")

    def rows(self, batch: Any) -> Any:
        """Return a batch whose columns Spark reads by position, once it is checked."""
        if isinstance(batch, pa.RecordBatch):
            if _reordered(batch.schema, self._arrow):
                names, declared = batch.schema.names, [field.name for field in self._arrow]
                raise self._refused(f"returned the columns {names}; the job declares {declared}")
            for index, field in enumerate(self._arrow):
                self._column(field.name, batch.schema.field(index).type, field.type, self._spark[index].dataType)
        return batch

    def named_rows(self, rows: Any) -> Any:
        """Return a table or batch whose columns Spark finds by name, once it is checked. Spark checks the names."""
        if isinstance(rows, pa.RecordBatch | pa.Table):
            for field in self._arrow:
                if rows.schema.get_field_index(field.name) >= 0:
                    returned = rows.schema.field(field.name).type
                    self._column(field.name, returned, field.type, self._spark[field.name].dataType)
        return rows

    def column(self, array: Any) -> Any:
        """Return the column that an Arrow UDF returns, once it is checked. Spark casts it to the declared type."""
        if isinstance(array, pa.Array):
            self._cast(array, self._arrow, "its column")
        return array

    def pandas_column(self, values: Any) -> Any:
        """Return the series of a pandas UDF, or the frame with its struct, once it is checked."""
        if isinstance(self._arrow, pa.StructType) and hasattr(values, "columns"):
            return self.pandas_rows(values)
        self._series(values, "its column")
        return values

    def pandas_rows(self, rows: Any) -> Any:
        """Return a frame whose columns Spark finds by name, or by position if they have no names, once it is
        checked.
        """
        if hasattr(rows, "columns") and hasattr(rows, "iloc"):
            by_name = any(isinstance(name, str) for name in rows.columns)
            for index, field in enumerate(self._spark):
                if field.name in rows.columns if by_name else index < len(rows.columns):
                    series = rows[field.name] if by_name else rows.iloc[:, index]
                    self._of_fields[index]._series(series, f"the column {field.name}")
        return rows

    @functools.cached_property
    def _of_fields(self) -> list[_Result]:
        return [_Result(self._function, field.dataType, pandas=True) for field in self._spark]

    def _series(self, series: Any, path: str) -> None:
        kinds, declared, dtype = pa.types, self._arrow, getattr(series, "dtype", None)
        if dtype is None or kinds.is_string(declared) or kinds.is_binary(declared):
            return  # Spark refuses it, or converts it to text
        if getattr(dtype, "kind", "O") in "iufb" and not any(is_kind(declared) for is_kind in _TEMPORAL):
            return  # of numpy: Spark refuses values that change
        try:
            array = pa.Array.from_pandas(series)
        except (pa.ArrowException, TypeError, ValueError):
            return  # Spark converts the values one by one, or refuses them
        for part in array.chunks if isinstance(array, pa.ChunkedArray) else [array]:
            self._cast(part, declared, path)

    def _column(self, name: str, returned: pa.DataType, declared: pa.DataType, spark_type: DataType) -> None:
        if not same(returned, declared):
            raise self._wrong(f"the column {name}", returned, declared, spark_type.simpleString())

    def _cast(self, array: pa.Array, declared: pa.DataType, path: str) -> None:
        if self._pandas and pa.types.is_timestamp(array.type):
            array = _as_spark_reads(array, declared)
        kinds, returned = pa.types, array.type
        if kinds.is_dictionary(returned):
            self._cast(array.dictionary_decode(), declared, path)
        elif same(returned, declared) or kinds.is_string(returned) or kinds.is_large_string(returned):
            return  # Spark parses text, or refuses it
        elif kinds.is_list(declared) and kinds.is_list(returned):
            self._cast(array.flatten(), declared.value_type, f"the items of {path}")
        elif kinds.is_map(declared) and kinds.is_map(returned):
            self._cast(array.keys, declared.key_type, f"the keys of {path}")
            self._cast(array.items, declared.item_type, f"the values of {path}")
        elif kinds.is_struct(declared) and kinds.is_struct(returned) and self._pandas:
            for field in declared:
                if (at := returned.get_field_index(field.name)) >= 0:
                    self._cast(array.flatten()[at], field.type, f"the field {field.name} of {path}")
        elif kinds.is_struct(declared) and kinds.is_struct(returned):
            if [field.name for field in returned] != [field.name for field in declared]:
                raise self._wrong(path, returned, declared, self._spark.simpleString())
            for field, part in zip(declared, array.flatten(), strict=True):
                self._cast(part, field.type, f"the field {field.name} of {path}")
        elif any(is_kind(returned) != is_kind(declared) for is_kind in _TEMPORAL):
            raise self._wrong(path, returned, declared, self._spark.simpleString())
        elif (lost := _lost(array, declared)) is not None:
            raise self._refused(
                f"returned {path} as {returned} with the value {shown(lost)}, which does not fit the declared type "
                f"{self._spark.simpleString()} ({declared})"
            )

    def _wrong(self, what: str, returned: pa.DataType, declared: pa.DataType, spark_type: str) -> Exception:
        return self._refused(f"returned {what} as {returned}; the job declares {spark_type}, which is {declared}")

    def _refused(self, what: str) -> Exception:
        return carry(
            JobCodeError(f"The function {self._name} {what}.", kept="the epoch was not published.", hint=_HINT)
        )


def _as_spark_reads(times: pa.Array, declared: pa.DataType) -> pa.Array:
    """Timestamps of pandas with the zone of the declared type; as dates if that is declared and no time is lost."""
    if pa.types.is_timestamp(declared):
        return times.cast(pa.timestamp(times.type.unit, declared.tz))
    if pa.types.is_date(declared) and _lost(times, declared) is None:
        return times.cast(declared, safe=False)
    return times


def _lost(array: pa.Array, declared: pa.DataType) -> Any:
    """Return the first value of a column that the declared type does not hold; None: each arrives, or Spark cannot cast
    it.
    """
    kinds, returned = pa.types, array.type
    try:
        if kinds.is_decimal(returned) and kinds.is_integer(declared):  # Arrow refuses the cast, pandas truncates
            changed = pc.not_equal(pc.round(array), array)
        elif kinds.is_floating(returned) and kinds.is_floating(declared):  # rounded as Spark does, but never infinite
            changed = pc.and_(pc.is_inf(array.cast(declared, safe=False)), pc.is_finite(array))
        else:
            changed = pc.not_equal(array.cast(declared, safe=False).cast(returned, safe=False), array)
    except pa.ArrowException:
        return None
    changed = pc.fill_null(changed, False)
    return array.filter(changed)[0].as_py() if pc.any(changed).as_py() else None


def checked(function: Function, declared: DataType, eval_type: int) -> Function:
    """Return the function, which checks its results before Spark reads them.

    Args:
        function: As the job passes it to Spark.
        declared: The Spark type of its rows, or of its column.
        eval_type: How Spark calls it (`PythonEvalType`); functions that return no Arrow data stay as they are.
    """
    check = _CHECKS.get(eval_type)
    return check(function, declared) if check else function


def _read_checked(pickle: Any, infile: Any, eval_type: int, *more: Any, **named: Any) -> Any:
    """Read a function from Spark as PySpark does; it checks what it returns."""

    def read(serializer: Any, file: Any) -> Any:
        function, declared = _read_command(serializer, file)
        function = checked(function, declared, eval_type)
        if eval_type in _MAPPING and live_epoch() is not None:
            function = _as(function, each_batch(function, declared, pandas=_MAPPING[eval_type]))
        return function, declared

    pyspark.worker.read_command = read
    try:
        return _read_single_udf(pickle, infile, eval_type, *more, **named)  # type: ignore[no-untyped-call]
    finally:
        pyspark.worker.read_command = _read_command


def _whole(check: str, function: Function, declared: DataType) -> Function:
    """Return the function, which returns one value that the method `check` of `_Result` judges."""
    result = _Result(function, declared, pandas=check.startswith("pandas"))

    def whole(*args: Any, **named: Any) -> Any:
        return getattr(result, check)(function(*args, **named))

    return _as(function, whole)


def _each(check: str, function: Function, declared: DataType) -> Function:
    """Return the function, which returns an iterator of values that the method `check` of `_Result` judges."""
    if "rows" in check and not isinstance(declared, StructType):
        return function
    result = _Result(function, declared, pandas=check.startswith("pandas"))

    def each(*args: Any, **named: Any) -> Iterator[Any]:
        items = function(*args, **named)
        return map(getattr(result, check), items) if hasattr(items, "__iter__") else items

    return _as(function, each)


def _as(function: Function, checked: Function) -> Function:
    """Return `checked`, with the parameters of `function`: PySpark counts them."""
    functools.update_wrapper(checked, function, updated=())
    with contextlib.suppress(ValueError, TypeError):  # a function without a signature takes what Spark passes
        checked.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return checked


_CHECKS: Final[dict[int, Callable[[Function, DataType], Function]]] = {
    PythonEvalType.SQL_MAP_ARROW_ITER_UDF: functools.partial(_each, "rows"),
    PythonEvalType.SQL_SCALAR_ARROW_UDF: functools.partial(_whole, "column"),
    PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF: functools.partial(_each, "column"),
    PythonEvalType.SQL_GROUPED_MAP_ARROW_UDF: functools.partial(_whole, "named_rows"),
    PythonEvalType.SQL_GROUPED_MAP_ARROW_ITER_UDF: functools.partial(_each, "named_rows"),
    PythonEvalType.SQL_COGROUPED_MAP_ARROW_UDF: functools.partial(_whole, "named_rows"),
    PythonEvalType.SQL_SCALAR_PANDAS_UDF: functools.partial(_whole, "pandas_column"),
    PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF: functools.partial(_each, "pandas_column"),
    PythonEvalType.SQL_MAP_PANDAS_ITER_UDF: functools.partial(_each, "pandas_rows"),
    PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF: functools.partial(_whole, "pandas_rows"),
    PythonEvalType.SQL_GROUPED_MAP_PANDAS_ITER_UDF: functools.partial(_each, "pandas_rows"),
    PythonEvalType.SQL_COGROUPED_MAP_PANDAS_UDF: functools.partial(_whole, "pandas_rows"),
    PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF_WITH_STATE: functools.partial(_each, "pandas_rows"),
    PythonEvalType.SQL_TRANSFORM_WITH_STATE_PANDAS_UDF: functools.partial(_each, "pandas_rows"),
    PythonEvalType.SQL_TRANSFORM_WITH_STATE_PANDAS_INIT_STATE_UDF: functools.partial(_each, "pandas_rows"),
}
