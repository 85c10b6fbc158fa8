"""The parent of Spark's Python workers, with everything imported that they need.

Spark forks its Python workers from one daemon. Its own daemon has imported next to nothing, so each worker
spends most of its first second on importing; forked from here they share what is already there.
"""

from __future__ import annotations

import gc
import os
import socket
from importlib.metadata import entry_points

import pandas  # noqa: F401
import pyarrow  # noqa: F401
import pyspark.daemon
import pyspark.sql.pandas.serializers
import pyspark.sql.pandas.types
import pyspark.sql.streaming.transform_with_state_driver_worker
import pyspark.worker

import clonos.causal.stateful
import clonos.causal.udf
import clonos.causal.vectorised  # noqa: F401
from clonos.causal.logged import task_fields
from clonos.engine import forks
from clonos.logs import configure_logs
from clonos.settings import Settings

_work = pyspark.daemon.worker


def work(sock: socket.socket, authenticated: bool) -> int:
    """PySpark's ``worker``, which does not take the end of a session for an error.

    An idle worker whose JVM is stopped may learn it from its connection before the daemon ends it. It then tries to
    tell the JVM about that, and printed a traceback of a broken pipe after a job that had ended well.

    Returns:
        0 when another task may come, something else when the worker is to end.
    """
    try:
        return _work(sock, authenticated)
    except ConnectionError:
        return 1


if __name__ == "__main__":
    settings = Settings()
    configure_logs(settings.log_format, settings.log_level, fields=task_fields)
    for sink in entry_points(group="clonos.sinks"):
        sink.load()
    # After each task PySpark's worker collects garbage. What is imported here is none: looking through it took
    # 25 to 45 ms of CPU per task, more than the task itself.
    gc.collect()
    gc.freeze()
    if address := os.environ.get(forks.ADDRESS):
        forks.serve(address)
    pyspark.daemon.worker = work
    pyspark.daemon.manager()
