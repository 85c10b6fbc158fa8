"""Encodes values to bytes canonically: equal values have equal bytes, so that keys and seeds are the same in a
replay.
"""

from __future__ import annotations

import sys
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa


def _plain_hook(value: object) -> object:
    pandas = sys.modules.get("pandas")  # slow to import; pandas values exist only after its import
    if pandas is not None:
        if value is pandas.NaT or value is pandas.NA:
            return None
        if isinstance(value, pandas.Timestamp):
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
    raise TypeError(f"a {type(value).__name__} cannot be part of a causal service's arguments")


canonical: Final = msgspec.msgpack.Encoder(order="deterministic", enc_hook=_plain_hook).encode
"""Encodes a value; the order of sets and dicts does not matter."""
