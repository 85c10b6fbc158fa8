"""Encodes values to bytes canonically: equal values have equal bytes, so that keys and seeds are the same in a
replay.
"""

from __future__ import annotations

import sys
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa


def _is_na(value: object) -> bool:
    """Whether `value` is the null of a pandas column of integers or times."""
    pandas = sys.modules.get("pandas")  # slow to import; pandas values exist only after its import
    return pandas is not None and (value is pandas.NA or value is pandas.NaT)


def plain(value: object) -> object:
    """Return the Python value of a number or null from a pandas column. Both have the same key."""
    if isinstance(value, np.integer | np.floating | np.bool_):
        return value.item()
    return None if _is_na(value) else value


def plain_hook(value: object) -> object:
    """Return the value that stands for a value which msgspec does not encode, in arguments and in answers.

    Raises:
        TypeError: There is none.
    """
    if _is_na(value):
        return None
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, pandas.Timestamp):
        # With nanoseconds only if they are not zero, so that equal times have equal bytes.
        return value.isoformat() if value.nanosecond else value.to_pydatetime()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, pa.Scalar):
        return value.as_py()
    item = getattr(value, "item", None)  # numpy scalars
    if callable(item):
        return item()
    if isinstance(value, tuple):  # Spark rows
        return tuple(value)
    raise TypeError(f"a {type(value).__name__} cannot be recorded")


canonical: Final = msgspec.msgpack.Encoder(order="deterministic", enc_hook=plain_hook).encode
"""Encodes a value; the order of sets and dicts does not matter."""
