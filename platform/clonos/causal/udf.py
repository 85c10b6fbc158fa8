"""`clonos.udf`: a per-row Python function as a Spark column, with causal services inside.

The function becomes an Arrow iterator UDF. At the start of a task, a replay loads the recorded determinants. Before a
batch is yielded, the log acknowledges the determinants of its rows, so no later operator can publish a row without
them.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, ParamSpec, Protocol, TypeVar, cast

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType, _parse_datatype_string

from clonos.carried_errors import carry
from clonos.causal import exact
from clonos.causal.counting import count
from clonos.causal.naming import operator_name, shown_name, stable_name
from clonos.causal.scope import TaskScope, open_task_scope, row_scope, task_scope
from clonos.errors import ClonosError, JobCodeError

UserFunction = Callable[..., Any]
P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class ColumnFunction(Protocol[P, R]):
    """A function that is called on columns, as `udf`, `pandas_udf` and `arrow_udf` return it."""

    @property
    def function(self) -> Callable[P, R]:
        """The function itself, for unit tests."""

    def __call__(self, *columns: Column | str) -> Column:
        """Return the column of the results; each call is an operator."""


_UNFIT: Final = (ValueError, TypeError, OverflowError, pa.ArrowNotImplementedError)


def udf(return_type: str | DataType, *, name: str | None = None) -> Callable[[Callable[P, R]], ColumnFunction[P, R]]:
    """Make a per-row function callable on columns, with causal services inside.

    Spark evaluates the function once per row and use. Each use on columns is an operator with its own determinants.

    Args:
        return_type: Spark type of the result, as DDL text or a `DataType`. For a struct the function returns a dict.
        name: The operator's stable name in the log; default the function's qualified name. Set it if the function may
            be renamed while an epoch is in doubt.

    Returns:
        A decorator. The decorated function takes columns (or their names) and returns a column; its attribute
        ``function`` is the original function, for unit tests.

    Raises:
        SpecError: The name contains ``#``, or is empty.
        TypeError: (when used) No column.

    Example::

        @clonos.udf("struct<banned:boolean, at:timestamp>")
        def judge(word):
            return {"banned": is_banned(word), "at": clonos.clock()}

        words.withColumn("verdict", judge("word"))
    """
    return on_columns("udf", return_type, name, _iterator_udf)


def on_columns(
    kind: str,
    return_type: str | DataType,
    name: str | None,
    build: Callable[[UserFunction, str, DataType, tuple[str, ...]], Callable[..., Column]],
) -> Callable[[Callable[P, R]], ColumnFunction[P, R]]:
    """Return the decorator ``clonos.<kind>``.

    The decorated function is callable on columns, and each such call is an operator.

    `build` returns Spark's UDF for the function, the operator's name, the result type and the names of the columns.
    """

    def wrap(function: Callable[P, R]) -> ColumnFunction[P, R]:
        operator = stable_name(name, function)

        @functools.wraps(function)
        def call(*columns: Any) -> Column:
            if not columns:
                raise TypeError(f"a clonos.{kind} takes at least one column")
            spark_type = _parse_datatype_string(return_type) if isinstance(return_type, str) else return_type
            numbered = operator_name(operator, shown_name(function))
            names = tuple(str(column).removeprefix("Column<'").removesuffix("'>") for column in columns)
            return build(function, numbered, spark_type, names)(*columns)

        call.function = function  # type: ignore[attr-defined]
        return cast("ColumnFunction[P, R]", call)

    return wrap


def _iterator_udf(
    function: UserFunction, operator: str, spark_type: DataType, names: tuple[str, ...]
) -> Callable[..., Column]:
    arrow_type = to_arrow_type(spark_type, timezone="UTC")
    struct = isinstance(spark_type, StructType)
    counters = count.for_pickling()

    def run(batches: Iterator[Any]) -> Iterator[pa.Array]:
        columns = ((batch,) for batch in batches) if len(names) == 1 else batches
        yield from _run(function, operator, names, columns, arrow_type, struct, counters)

    run.__name__ = shown_name(function)  # Spark's plans and default column names show it
    # PySpark derives the kind of UDF from its annotations.
    value = pa.Array if len(names) == 1 else tuple[pa.Array, ...]
    run.__annotations__ = {"batches": Iterator[value], "return": Iterator[pa.Array]}  # type: ignore[valid-type]
    return _arrow_udf(run, spark_type)


# The stubs list scalar functions only; iterators of arrays are documented.
_unchecked: Callable[..., Any] = cast("Any", arrow_udf)


def _arrow_udf(function: Callable[..., Any], spark_type: DataType) -> Callable[..., Column]:
    """Return an Arrow UDF that Spark evaluates once.

    Spark may evaluate a deterministic UDF twice, for a filter and for the output. Two evaluations would be two
    operators with different determinants, so the published rows could differ from the filtered ones.
    """
    once: Callable[..., Column] = _unchecked(function, spark_type).asNondeterministic()
    return once


def _run(
    function: UserFunction,
    operator: str,
    names: tuple[str, ...],
    batches: Iterator[tuple[pa.Array, ...]],
    arrow_type: pa.DataType,
    struct: bool,
    counters: Any,
) -> Iterator[pa.Array]:
    try:
        scope = open_task_scope(operator)
        fit = exact.of_arrow(arrow_type)
        start = 0
        with _Rows(function, scope) as rows:
            for batch in batches:
                columns = [
                    exact.from_arrow(column, f"The UDF {operator}", name, start)
                    for column, name in zip(batch, names, strict=True)
                ]
                values = rows.compute(start, columns)
                start += len(values)
                if struct:
                    values = [_as_dict(value) for value in values]
                result = _as_array(values, arrow_type, fit, operator, columns)
                if scope is not None:
                    scope.flush()
                yield result
        if scope is not None:
            count.add(counters, scope.epoch.identity.query, operator, scope.tally)
    except ClonosError as error:
        raise carry(error) from error


def _as_array(
    values: list[Any], arrow_type: pa.DataType, fit: exact.Fit | None, operator: str, columns: list[list[Any]]
) -> pa.Array:
    """Return the results as an Arrow array.

    Raises:
        JobCodeError: A result does not fit the type; the error names the UDF, the result and the row's arguments.
    """
    try:
        if fit is not None and not set(map(type, values)) <= exact.unchanged(arrow_type):
            for value in values:
                fit(value)  # pyarrow cuts 1.9 to the integer 1
        return pa.array(values, type=arrow_type)
    except _UNFIT as failure:
        for index, value in enumerate(values):
            try:
                if fit is not None:
                    fit(value)
                pa.array([value], type=arrow_type)
            except _UNFIT as error:
                row = ", ".join(exact.shown(column[index]) for column in columns)
                raise JobCodeError(
                    f"The UDF {operator} returned {exact.shown(value)} for the arguments ({row}), which does "
                    f"not fit the type {arrow_type}: {error}.",
                    hint="return a value of the declared type; text must be valid Unicode without lone surrogates.",
                ) from error
        raise JobCodeError(
            f"The UDF {operator} returned values that do not fit the type {arrow_type}: {failure}."
        ) from failure


def _as_dict(value: Any) -> Any:
    return value.asDict(recursive=True) if hasattr(value, "asDict") else value


class _Rows:
    """Computes the rows of a batch: in order, and in parallel after the first call of a concurrent service."""

    def __init__(self, function: UserFunction, scope: TaskScope | None) -> None:
        self._function = function
        self._scope = scope
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> _Rows:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def compute(self, start: int, columns: list[list[Any]]) -> list[Any]:
        rows = list(zip(*columns, strict=True))
        scope = self._scope
        if scope is None:
            return [self._function(*row) for row in rows]
        with task_scope(scope):
            values: list[Any] = []
            with row_scope(start) as position:
                for row in rows:
                    if scope.concurrency > 1:
                        break
                    position.move(start + len(values))
                    values.append(self._function(*row))
            rest = range(len(values), len(rows))
            if rest:
                # Each row runs in a copy of this context, with its task and its own position.
                values.extend(
                    future.result()
                    for future in [
                        self._threads(scope.concurrency).submit(
                            contextvars.copy_context().run, self._row, start + index, rows[index]
                        )
                        for index in rest
                    ]
                )
            return values

    def _row(self, index: int, row: tuple[Any, ...]) -> Any:
        with row_scope(index):
            return self._function(*row)

    def _threads(self, concurrency: int) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(concurrency, "clonos-rows")
        return self._pool
