"""The parent of Spark's Python workers, with everything imported that they need.

Spark forks its Python workers from one daemon. Its own daemon has imported next to nothing, so each worker
spends most of its first second on importing; forked from here they share what is already there.
"""

from __future__ import annotations

from importlib.metadata import entry_points

import pandas  # noqa: F401
import pyarrow  # noqa: F401
import pyspark.sql.pandas.serializers
import pyspark.sql.pandas.types
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import clonos.causal.udf  # noqa: F401

if __name__ == "__main__":
    for sink in entry_points(group="clonos.sinks"):
        sink.load()
    manager()
