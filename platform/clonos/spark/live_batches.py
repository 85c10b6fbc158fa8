"""Python functions in live queries: what a function returns for a batch leaves the worker before the next batch comes.

A live epoch lasts minutes, and `clonos.LivePython` sends a worker the next batch when it has the results of the last
one. A function on an iterator may ask for the next batch first. Then its input ends, as at the end of a task, and the
next batch is the input of another call. A function that maps batches may keep rows back unseen: it is called for each
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyspark.worker
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from clonos.causal.epoch_scope import EpochScope
from clonos.causal.scope import begin_batch, live_epoch

Evaluate = Callable[[int, Iterator[Any]], Iterator[Any]]
"""Computes the results of a task, as PySpark builds it: (the number of the task, batches) → batches."""

_ON_ITERATORS = (PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF, PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF)
_read_udfs = pyspark.worker.read_udfs


def install() -> None:
    """Prepare the functions of this Python worker for live queries."""
    pyspark.worker.read_udfs = _read_live


def each_batch(function: Callable[..., Any], declared: StructType, *, pandas: bool) -> Callable[..., Iterator[Any]]:
    """Return a function for ``mapInArrow`` or ``mapInPandas`` that calls `function` for each batch.

    An empty result follows the results of a batch. `declared` is the type of the rows.
    """
    schema = to_arrow_schema(declared, timezone="UTC")

    def live(batches: Iterator[Any]) -> Iterator[Any]:
        empty = schema.empty_table()
        end = empty.to_pandas() if pandas else pa.RecordBatch.from_arrays([[] for _ in schema], schema=schema)
        for batch in batches:
            results = function(iter((batch,)))
            # PySpark refuses anything else than a batch, and names it in its error.
            for result in results if hasattr(results, "__iter__") else (results,):
                if not hasattr(result, "__len__") or len(result):
                    yield _as_declared(result, schema)
            yield end

    return live


def _as_declared(result: Any, schema: pa.Schema) -> Any:
    """Return an Arrow result with the types of the empty ones: all results of a worker have one schema."""
    if not isinstance(result, pa.RecordBatch):
        return result
    columns = [column.cast(field.type) for column, field in zip(result.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _read_live(pickle: Any, infile: Any, eval_type: int, *more: Any) -> Any:
    """Read the functions of a task as PySpark does."""
    evaluate, *others = _read_udfs(pickle, infile, eval_type, *more)  # type: ignore[no-untyped-call]
    if (epoch := live_epoch()) is not None:
        evaluate = batch_by_batch(evaluate, epoch, on_iterators=eval_type in _ON_ITERATORS)
    return evaluate, *others


def batch_by_batch(evaluate: Evaluate, epoch: EpochScope, *, on_iterators: bool) -> Evaluate:
    """Return the computation of a live task.

    Args:
        evaluate: PySpark's computation.
        epoch: The live epoch.
        on_iterators: Whether the function takes an iterator of batches. It returns one row for each row.
    """

    def live(task: int, batches: Iterator[Any]) -> Iterator[Any]:
        timed = _timed(batches, epoch)
        if not on_iterators:
            yield from evaluate(task, timed)
            return
        for first in timed:
            call = _Call(first, timed)
            yield from call.counted(evaluate(task, call.input()))

    return live


def _timed(batches: Iterator[Any], epoch: EpochScope) -> Iterator[Any]:
    for batch in batches:
        begin_batch(epoch)
        yield batch


class _Call:
    """One call of a function on an iterator.

    Args:
        first: The first batch.
        later: The batches after it.
    """

    def __init__(self, first: Any, later: Iterator[Any]) -> None:
        self._first = first
        self._later = later
        self._due = 0  # number of rows that the function has read and not returned

    def input(self) -> Iterator[Any]:
        """Yield batches, until the function asks for one before it has returned the rows of the last."""
        batch = self._first
        while batch is not None:
            self._due += _rows(batch)
            yield batch
            batch = next(self._later, None) if self._due == 0 else None

    def counted(self, results: Iterator[Any]) -> Iterator[Any]:
        """Yield the results of the call."""
        for result in results:
            self._due -= _rows(result)
            yield result


def _rows(batch: Any) -> int:
    """Return the number of rows of a batch of PySpark: an Arrow batch, or a tuple with a series of pandas first."""
    return batch.num_rows if isinstance(batch, pa.RecordBatch) else len(batch[0])
