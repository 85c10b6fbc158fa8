"""The rows of a lane: the last one of each key, and their values as databases take them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_POSITION = "clonos position"


def last_of_each_key(rows: pa.Table, key: list[str], version: str | None) -> pa.Table:
    """Return the row of each key that stays, in the order of `rows`.

    Without `version` that is the last one; with it, the first one of those with the greatest version.
    """
    positioned = rows.append_column(_POSITION, pa.array(range(rows.num_rows), pa.int64()))
    if version is None:
        last = positioned.group_by(key, use_threads=False).aggregate([(_POSITION, "max")])[f"{_POSITION}_max"]
    else:
        order = pc.sort_indices(positioned, [(version, "ascending"), (_POSITION, "descending")])
        ranked = positioned.take(order).append_column("clonos rank", pa.array(range(rows.num_rows), pa.int64()))
        top = ranked.group_by(key, use_threads=False).aggregate([("clonos rank", "max")])["clonos rank_max"]
        last = ranked.take(top)[_POSITION]
    kept = pc.sort_indices(last)
    return rows.take(last.take(kept))


def array_literal(column: pa.ChunkedArray) -> str:
    """Return the values as the text of an array of PostgreSQL; times of Spark's type timestamp are in UTC."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        column = pa.array([None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()], pa.string())
    values = column.cast(pa.string())
    for special in ("\\", '"'):
        values = pc.replace_substring(values, special, f"\\{special}")
    quoted = pc.fill_null(pc.binary_join_element_wise('"', values, '"', ""), "NULL")
    return f"{{{','.join(quoted.to_pylist())}}}"


def natives(column: pa.ChunkedArray) -> list[object]:
    """Return the values as SQLite takes them: decimals, dates and times are text."""
    if pa.types.is_decimal(column.type) or pa.types.is_temporal(column.type):
        column = column.cast(pa.string())
    values: list[object] = column.to_pylist()
    return values
