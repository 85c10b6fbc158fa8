"""The canonical order of the rows of a group, the same in every replay.

After a shuffle the rows of a group arrive in any order. They are sorted by the columns that the job names, otherwise by
topic, partition and offset if the group has them. Ties are sorted by all columns, so the order depends on the rows
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clonos.causal.encoding import canonical
from clonos.errors import JobCodeError

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Row

SOURCE: Final = ("topic", "partition", "offset")
# Spark's default number of rows in an Arrow batch.
_CHUNK: Final = 10_000

OrderBy = tuple[str, ...] | None


def ordered_frame(frame: pd.DataFrame, by: OrderBy) -> pd.DataFrame:
    """Return the rows of a pandas DataFrame in canonical order; `by` are the columns that the job names, if any."""
    order = _order(list(frame.columns), len(frame), lambda name: _from_pandas(frame[name]), by)
    return frame if order is None else frame.take(order).reset_index(drop=True)


def ordered_table(table: pa.Table, by: OrderBy) -> pa.Table:
    """Return the rows of an Arrow table in canonical order; `by` are the columns that the job names, if any."""
    order = _order(table.column_names, table.num_rows, lambda name: _sortable(table.column(name)), by)
    return table if order is None else table.take(pa.array(order))


def ordered_rows(rows: list[Row], by: OrderBy) -> list[Row]:
    """Spark rows in canonical order; `by` are the columns that the job names, if any."""
    if len(rows) < 2:
        return rows
    names: list[str] = list(rows[0].__fields__)
    first = [names.index(name) for name in _first(names, by)]
    ranked = [([_rank(row[index]) for index in first], row) for row in rows]
    ranked.sort(key=lambda pair: pair[0])
    if not first or any(left[0] == right[0] for left, right in pairwise(ranked)):
        ranked.sort(key=lambda pair: (pair[0], [_rank(value) for value in pair[1]]))
    return [row for _, row in ranked]


def ordered_batches(batches: Iterable[Any], by: OrderBy) -> Iterator[Any]:
    """Yield the DataFrames or Arrow record batches of one group, with their rows in canonical order across all of
    them.
    """
    parts = list(batches)
    if not parts:
        return
    if isinstance(parts[0], pa.RecordBatch):
        table = ordered_table(pa.Table.from_batches(parts).combine_chunks(), by)
        yield from table.to_batches(max_chunksize=_CHUNK) or parts[:1]
        return
    import pandas as pd

    frame = ordered_frame(parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=True), by)
    for start in range(0, max(len(frame), 1), _CHUNK):
        yield frame.iloc[start : start + _CHUNK].reset_index(drop=True) if len(frame) > _CHUNK else frame


def fingerprint(*parts: Any) -> bytes:
    """Encode all rows of a group as bytes that identify it, where Spark does not pass its key to the function.

    `parts` are the group's DataFrames or Arrow tables, already in canonical order; two for a cogroup.
    """
    return canonical([part.to_dict("split") if hasattr(part, "iloc") else part.to_pydict() for part in parts])


def present_columns(names: Sequence[str], by: OrderBy) -> OrderBy:
    """Return the columns of `by` that are among `names`; None, for the default order, if there are none."""
    return tuple(name for name in by or () if name in names) or None


def _first(names: Sequence[str], by: OrderBy) -> list[str]:
    """Return the columns to sort by before all others."""
    if by is None:
        return list(SOURCE) if set(SOURCE) <= set(names) else []
    missing = [name for name in by if name not in names]
    if missing:
        raise JobCodeError(
            f"order_by names {missing}, but the group has {list(names)}.", hint="name columns of the group's input."
        )
    return list(by)


def _order(
    names: list[str], size: int, column: Callable[[str], pa.Array | pa.ChunkedArray], by: OrderBy
) -> np.ndarray | None:
    """Return the indices of the rows in canonical order; None if the rows are in this order already."""
    if size < 2:
        return None
    first = _first(names, by)
    columns = [column(name) for name in first]
    order = _sorted(columns)
    if order is None or _any_equal(columns, order):
        columns += [column(name) for name in names if name not in first]
        order = _sorted(columns)
    if order is None or np.array_equal(order, np.arange(size)):
        return None
    return order


def _sorted(columns: list[pa.Array | pa.ChunkedArray]) -> np.ndarray | None:
    if not columns:
        return None
    names = [str(number) for number in range(len(columns))]
    table = pa.table(columns, names=names)
    order: np.ndarray = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names]).to_numpy()
    return order


def _any_equal(columns: list[pa.Array | pa.ChunkedArray], order: np.ndarray) -> bool:
    """Whether two neighbours in `order` are equal in all columns."""
    equal = np.ones(len(order) - 1, dtype=bool)
    for column in columns:
        values = column.take(pa.array(order))
        left, right = values.slice(0, len(values) - 1), values.slice(1)
        same = pc.fill_null(pc.equal(left, right), fill_value=False).to_numpy(zero_copy_only=False)
        neither = pc.and_(pc.is_null(left, nan_is_null=True), pc.is_null(right, nan_is_null=True))
        equal &= same | neither.to_numpy(zero_copy_only=False)
    return bool(equal.any())


def _from_pandas(series: pd.Series[Any]) -> pa.Array | pa.ChunkedArray:
    try:
        return _sortable(pa.array(series, from_pandas=True))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return _encoded(series.tolist())  # values of several types


def _sortable(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    kind = column.type
    compared = (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_date(kind)
        or pa.types.is_time(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )
    return column if compared else _encoded(column.to_pylist())


def _encoded(values: list[Any]) -> pa.Array:
    """Structs, arrays and maps, which are sorted by their canonical encoding."""
    return pa.array([None if value is None else canonical(value) for value in values], pa.binary())


def _rank(value: Any) -> tuple[int, Any]:
    """Return the sort key of a value of a Spark row, among the values of its column."""
    if value is None:
        return (2, None)
    if isinstance(value, float) and value != value:
        return (1, None)
    if isinstance(value, list | dict | tuple):
        return (0, canonical(value))
    return (0, value)
