"""`clonos.pandas_udf` and `clonos.arrow_udf`: functions on whole columns, with causal services inside.

Both become iterator UDFs: one scope for the task, and an acknowledgement by the log before each batch is yielded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas import functions
from pyspark.sql.types import DataType, FloatType, StructType
from pyspark.util import PythonEvalType

from clonos.carried_errors import carry
from clonos.causal.counting import count
from clonos.causal.naming import shown_name
from clonos.causal.operator_task import OperatorTask
from clonos.causal.udf import ColumnFunction, P, R, UserFunction, on_columns
from clonos.errors import JobCodeError, SpecError

Kind = Literal["pandas", "arrow"]

_LARGEST_FLOAT: Final = float(np.finfo(np.float32).max)

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
    ``pyspark.sql.functions.arrow_udf``. Arguments, result and errors are as for `pandas_udf`.

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

    tasks: list[OperatorTask] = []  # one in each task: in a live query a task may have several calls

    def batches(columns: Iterator[Any]) -> Iterator[Any]:
        if not tasks:
            tasks.append(OperatorTask(operator, counters))
        results = tasks[0].stream(None, apply, columns)
        return (_fitting(result, spark_type, operator) for result in results) if kind == "pandas" else results

    value = _value_type(kind)
    batch = value if len(names) == 1 else tuple[value, ...]  # type: ignore[valid-type]
    # PySpark derives the kind of UDF from its annotations.
    batches.__annotations__ = {"columns": Iterator[batch], "return": Iterator[value]}  # type: ignore[valid-type]
    batches.__name__ = shown_name(function)
    batches.operator = operator  # type: ignore[attr-defined]  # for errors
    # Spark evaluates it once, as a clonos.udf.
    once: Callable[..., Column] = spark_udf(batches, spark_type).asNondeterministic()
    return once


def _fitting(result: Any, spark_type: DataType, operator: str) -> Any:
    """Return the result, if no number in it is too large for Spark's ``float``; pandas would make it infinite.

    Spark checks the other numbers (`spark.sql.execution.pandas.convertToArrowArraySafely`).
    """
    if isinstance(spark_type, StructType):
        columns = [(result[field.name], field.dataType) for field in spark_type if field.name in result]
    else:
        columns = [(result, spark_type)]
    for values, of_column in columns:
        if isinstance(of_column, FloatType) and getattr(values, "dtype", None) == np.float64:
            large = values[np.isfinite(values) & (np.abs(values) > _LARGEST_FLOAT)]
            if len(large):
                raise carry(
                    JobCodeError(
                        f"The UDF {operator} returned {float(large.iloc[0])}, which does not fit a float of 32 bits.",
                        hint="declare the result as double, or return smaller numbers.",
                    )
                )
    return result


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
