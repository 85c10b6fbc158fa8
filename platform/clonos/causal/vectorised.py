"""`clonos.pandas_udf` and `clonos.arrow_udf`: functions on whole columns, with causal services inside.

Both become iterator UDFs: one scope for the task, and an acknowledgement by the log before each batch is yielded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal, cast

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas import functions
from pyspark.sql.types import DataType, StructType
from pyspark.util import PythonEvalType

from clonos.causal.counting import count
from clonos.causal.naming import shown_name
from clonos.causal.operator_task import OperatorTask
from clonos.causal.udf import ColumnFunction, P, R, UserFunction, on_columns
from clonos.errors import SpecError

Kind = Literal["pandas", "arrow"]

_BY_BATCH = {PythonEvalType.SQL_SCALAR_PANDAS_UDF, PythonEvalType.SQL_SCALAR_ARROW_UDF}
_BY_ITERATOR = {PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF, PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF}


def pandas_udf(
    return_type: str | DataType, *, name: str | None = None
) -> Callable[[Callable[P, R]], ColumnFunction[P, R]]:
    """Make a pandas function callable on columns, with causal services inside.

    The function maps Series to a Series (DataFrames for structs), or an iterator of Series to an iterator. Its
    annotations decide, as in ``pyspark.sql.functions.pandas_udf``. Each use on columns is an operator with its own
    determinants.

    Args:
        return_type: Spark type of the result, as DDL text or a `DataType`.
        name: The operator's stable name in the log; default the function's qualified name.

    Returns:
        A decorator. The decorated function takes columns (or their names) and returns a column; its attribute
        ``function`` is the original function, for unit tests.

    Raises:
        SpecError: The name is not allowed, or (when used) the function is an aggregate.
        TypeError: (when used) No column.
        ValueError: (in a task) The function returned another number of rows than it received.

    Example::

        @clonos.pandas_udf("boolean")
        def banned(words: pd.Series) -> pd.Series:
            return pd.Series(is_banned.map(words))
    """
    return on_columns("pandas_udf", return_type, name, functools.partial(_iterator_udf, "pandas"))


def arrow_udf(
    return_type: str | DataType, *, name: str | None = None
) -> Callable[[Callable[P, R]], ColumnFunction[P, R]]:
    """Make a function on Arrow arrays callable on columns, with causal services inside.

    The function maps arrays to an array, or an iterator of arrays to an iterator. Its annotations decide, as in
    ``pyspark.sql.functions.arrow_udf``. Arguments, result and errors are those of `pandas_udf`.

    Example::

        @clonos.arrow_udf("boolean")
        def banned(words: pa.Array) -> pa.Array:
            return pa.array(is_banned.map(words.to_pylist()))
    """
    return on_columns("arrow_udf", return_type, name, functools.partial(_iterator_udf, "arrow"))


def _iterator_udf(
    kind: Kind, function: UserFunction, operator: str, spark_type: DataType, names: tuple[str, ...]
) -> Callable[..., Column]:
    spark_udf: Callable[..., Any] = cast("Any", functions.pandas_udf if kind == "pandas" else functions.arrow_udf)
    counters = count.for_pickling()
    eval_type = spark_udf(function, spark_type).evalType
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
    batch = value if len(names) == 1 else tuple[value, ...]  # type: ignore[valid-type]
    # PySpark derives the kind of UDF from its annotations.
    batches.__annotations__ = {"columns": Iterator[batch], "return": Iterator[value]}  # type: ignore[valid-type]
    batches.__name__ = shown_name(function)
    # Spark evaluates it once, as a clonos.udf.
    once: Callable[..., Column] = spark_udf(batches, spark_type).asNondeterministic()
    return once


def _value_type(kind: Kind) -> Any:
    if kind == "arrow":
        return pa.Array
    import pandas as pd

    return pd.Series


def _batch_by_batch(kind: Kind, function: UserFunction, struct: bool) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def apply(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            columns = batch if isinstance(batch, tuple) else (batch,)
            result = function(*columns)
            if len(result) != len(columns[0]):
                raise ValueError(f"the function got {len(columns[0])} rows and returned {len(result)}")
            if kind == "pandas" and not struct and not hasattr(result, "iloc"):
                import pandas as pd

                result = pd.Series(result)  # a scalar UDF may return anything with a length, an iterator only Series
            yield result

    return apply
