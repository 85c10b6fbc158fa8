"""`clonos.udf`: a per-row Python function as a Spark column, with a place for the causal log.

It becomes an Arrow iterator UDF, so there is a start of the task (recorded answers are loaded in a replay)
and a place between batches: new answers are acknowledged by the log *before* the batch that used them is
yielded, so nothing downstream can publish what the log does not hold.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType, _parse_datatype_string

from clonos.carried import carry
from clonos.causal.counting import count
from clonos.causal.naming import operator_name, shown_name, stable_name
from clonos.causal.scope import TaskScope, open_task_scope, row_scope, task_scope
from clonos.errors import ClonosError

RowFunction = Callable[..., Any]


def udf(return_type: str | DataType, *, name: str | None = None) -> Callable[[RowFunction], Callable[..., Column]]:
    """Make a per-row function callable on columns, with causal services inside.

    Args:
        return_type: Spark type of the result, as DDL text or a `DataType`. A struct is returned as a dict.
        name: The operator's stable name in the log; default the function's qualified name. Give one when the
            function may be renamed while an epoch is in doubt.

    Example::

        @clonos.udf("struct<banned:boolean, at:timestamp>")
        def judge(word):
            return {"banned": is_banned(word), "at": clonos.clock()}
    """

    def wrap(function: RowFunction) -> Callable[..., Column]:
        operator = stable_name(name, function)

        @functools.wraps(function)
        def on_columns(*columns: Any) -> Column:
            spark_type = _parse_datatype_string(return_type) if isinstance(return_type, str) else return_type
            numbered = operator_name(operator, shown_name(function))
            return _iterator_udf(function, numbered, spark_type, len(columns))(*columns)

        on_columns.function = function  # type: ignore[attr-defined]  # for unit tests of the row logic
        return on_columns

    return wrap


def _iterator_udf(function: RowFunction, operator: str, spark_type: DataType, arity: int) -> Callable[..., Column]:
    arrow_type = to_arrow_type(spark_type, timezone="UTC")
    struct = isinstance(spark_type, StructType)
    counters = count.for_pickling()

    def batches_of_one(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        yield from _run(function, operator, ((batch,) for batch in batches), arrow_type, struct, counters)

    def batches_of_many(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        yield from _run(function, operator, batches, arrow_type, struct, counters)

    if arity == 0:
        raise TypeError("a clonos.udf takes at least one column")
    # What Spark's plans and default column names show.
    batches_of_one.__name__ = batches_of_many.__name__ = shown_name(function)
    if arity == 1:
        batches_of_one.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
        return _arrow_udf(batches_of_one, spark_type)
    # PySpark reads the kind of UDF from its annotations.
    batches_of_many.__annotations__ = {"batches": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
    return _arrow_udf(batches_of_many, spark_type)


# Its stubs list scalar functions only; iterators of arrays are documented and work.
_unchecked: Callable[..., Any] = cast("Any", arrow_udf)


def _arrow_udf(function: Callable[..., Any], spark_type: DataType) -> Callable[..., Column]:
    """An Arrow UDF that Spark evaluates once.

    Spark may evaluate a deterministic UDF twice (for a filter and for the output); two evaluations are two
    operators with answers of their own, and what was filtered would not be what is published.
    """
    made: Callable[..., Column] = _unchecked(function, spark_type).asNondeterministic()
    return made


def _run(
    function: RowFunction,
    operator: str,
    batches: Iterator[tuple[pa.Array, ...]],
    arrow_type: pa.DataType,
    struct: bool,
    counters: Any,
) -> Iterator[pa.Array]:
    try:
        scope = open_task_scope(operator)
        start = 0
        with _Rows(function, scope) as rows:
            for batch in batches:
                values = rows.compute(start, [column.to_pylist() for column in batch])
                start += len(values)
                if struct:
                    values = [_as_dict(value) for value in values]
                result = pa.array(values, type=arrow_type)
                if scope is not None:
                    scope.flush()
                yield result
        if scope is not None:
            count.add(counters, scope.epoch.query, operator, scope.tally)
    except ClonosError as error:
        raise carry(error) from error


def _as_dict(value: Any) -> Any:
    return value.asDict(recursive=True) if hasattr(value, "asDict") else value


class _Rows:
    """Computes the rows of a batch, in order and, once a concurrent service was called, several at a time."""

    def __init__(self, function: RowFunction, scope: TaskScope | None) -> None:
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
                # Each row runs in a copy of this context, so that it finds its task and its own position.
                values.extend(
                    future.result()
                    for future in [
                        self._threads(scope.concurrency).submit(
                            contextvars.copy_context().run, self._one, start + index, rows[index]
                        )
                        for index in rest
                    ]
                )
            return values

    def _one(self, index: int, row: tuple[Any, ...]) -> Any:
        with row_scope(index):
            return self._function(*row)

    def _threads(self, concurrency: int) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(concurrency, "clonos-rows")
        return self._pool
