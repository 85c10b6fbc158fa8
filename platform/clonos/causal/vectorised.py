"""`clonos.pandas_udf` and `clonos.arrow_udf`: functions on whole columns, with causal services inside.

Both become iterator UDFs, whatever kind of function they wrap: one scope for the task, and a place between
batches where new answers are acknowledged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal, cast

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas import functions
from pyspark.sql.types import DataType, StructType, _parse_datatype_string
from pyspark.util import PythonEvalType

from clonos.causal.counting import count
from clonos.causal.naming import operator_name, shown_name, stable_name
from clonos.causal.operators import OperatorTask
from clonos.errors import SpecError

VectorFunction = Callable[..., Any]
Kind = Literal["pandas", "arrow"]

_BY_BATCH = {PythonEvalType.SQL_SCALAR_PANDAS_UDF, PythonEvalType.SQL_SCALAR_ARROW_UDF}
_BY_ITERATOR = {PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF, PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF}


def pandas_udf(
    return_type: str | DataType, *, name: str | None = None
) -> Callable[[VectorFunction], Callable[..., Column]]:
    """Make a pandas function callable on columns, with causal services inside.

    Series to Series (DataFrames for structs), or an iterator of them to an iterator, told by the annotations as
    in ``pyspark.sql.functions.pandas_udf``.

    Args:
        return_type: Spark type of the result, as DDL text or a `DataType`.
        name: The operator's stable name in the log; default the function's qualified name.

    Example::

        @clonos.pandas_udf("boolean")
        def banned(words: pd.Series) -> pd.Series:
            return pd.Series(is_banned.map(words))
    """
    return _decorator("pandas", return_type, name)


def arrow_udf(
    return_type: str | DataType, *, name: str | None = None
) -> Callable[[VectorFunction], Callable[..., Column]]:
    """Make a function on Arrow arrays callable on columns, with causal services inside.

    Arrays to an array, or an iterator of them to an iterator, told by the annotations as in
    ``pyspark.sql.functions.arrow_udf``.

    Args:
        return_type: Spark type of the result, as DDL text or a `DataType`.
        name: The operator's stable name in the log; default the function's qualified name.
    """
    return _decorator("arrow", return_type, name)


def _decorator(
    kind: Kind, return_type: str | DataType, name: str | None
) -> Callable[[VectorFunction], Callable[..., Column]]:
    def wrap(function: VectorFunction) -> Callable[..., Column]:
        operator = stable_name(name, function)

        @functools.wraps(function)
        def on_columns(*columns: Any) -> Column:
            if not columns:
                raise TypeError(f"a clonos.{kind}_udf takes at least one column")
            spark_type = _parse_datatype_string(return_type) if isinstance(return_type, str) else return_type
            numbered = operator_name(operator, shown_name(function))
            return _iterator_udf(kind, function, numbered, spark_type, len(columns))(*columns)

        on_columns.function = function  # type: ignore[attr-defined]  # for unit tests
        return on_columns

    return wrap


def _iterator_udf(
    kind: Kind, function: VectorFunction, operator: str, spark_type: DataType, arity: int
) -> Callable[..., Column]:
    made: Callable[..., Any] = cast("Any", functions.pandas_udf if kind == "pandas" else functions.arrow_udf)
    counters = count.for_pickling()
    eval_type = made(function, spark_type).evalType
    if eval_type in _BY_BATCH:
        apply = _batch_by_batch(kind, function, isinstance(spark_type, StructType))
    elif eval_type in _BY_ITERATOR:
        apply = function
    else:
        raise SpecError(
            f"{operator} is an aggregate; clonos.{kind}_udf takes functions from columns to a column.",
            hint=f"wrap a function for groupBy(…).applyIn{kind.capitalize()} in clonos.operator.",
        )

    def batches(columns: Iterator[Any]) -> Iterator[Any]:
        return OperatorTask(operator, counters).stream(None, apply, columns)

    value = _value_type(kind)
    given = value if arity == 1 else tuple[value, ...]  # type: ignore[valid-type]
    # PySpark reads the kind of UDF from its annotations.
    batches.__annotations__ = {"columns": Iterator[given], "return": Iterator[value]}  # type: ignore[valid-type]
    batches.__name__ = shown_name(function)
    # Evaluated once, as a clonos.udf is.
    once: Callable[..., Column] = made(batches, spark_type).asNondeterministic()
    return once


def _value_type(kind: Kind) -> Any:
    if kind == "arrow":
        return pa.Array
    import pandas as pd

    return pd.Series


def _batch_by_batch(kind: Kind, function: VectorFunction, struct: bool) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def apply(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            columns = batch if isinstance(batch, tuple) else (batch,)
            result = function(*columns)
            if len(result) != len(columns[0]):
                raise ValueError(f"{len(columns[0])} rows went in, {len(result)} came out")
            if kind == "pandas" and not struct and not hasattr(result, "iloc"):
                import pandas as pd

                result = pd.Series(result)  # Spark takes anything with a length here, iterators only Series
            yield result

    return apply
