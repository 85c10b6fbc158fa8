"""The parent of Spark's Python workers, with everything imported that they need.

Spark forks its Python workers from one daemon. Its own daemon has imported next to nothing, so each worker
spends most of its first second on importing; forked from here they share what is already there.
"""

from __future__ import annotations

import gc
from importlib.metadata import entry_points

import pandas  # noqa: F401
import pyarrow  # noqa: F401
import pyspark.sql.pandas.serializers
import pyspark.sql.pandas.types
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import clonos.causal.stateful
import clonos.causal.udf
import clonos.causal.vectorised  # noqa: F401
from clonos.causal.logged import task_fields
from clonos.logs import configure_logs
from clonos.settings import Settings

if __name__ == "__main__":
    settings = Settings()
    configure_logs(settings.log_format, settings.log_level, fields=task_fields)
    for sink in entry_points(group="clonos.sinks"):
        sink.load()
    # After each task PySpark's worker collects garbage. What is imported here is none: looking through it took
    # 25 to 45 ms of CPU per task, more than the task itself.
    gc.collect()
    gc.freeze()
    manager()
