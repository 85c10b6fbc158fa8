"""The daemon that Spark forks its Python workers from, with the workers' imports done.

Spark's own daemon imports very little, so each worker spends most of its first second on imports. Workers that are
forked from this daemon share its imported modules.
"""

from __future__ import annotations

import functools
import gc
import os
import socket
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import pandas  # noqa: F401
import pyarrow  # noqa: F401
import pyspark.daemon
import pyspark.sql.pandas.serializers
import pyspark.sql.pandas.types
import pyspark.sql.streaming.transform_with_state_driver_worker
import pyspark.worker
from pyspark.sql import Row
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

import clonos.causal.stateful
import clonos.causal.udf
import clonos.causal.vectorised  # noqa: F401
from clonos.carried_errors import carry
from clonos.causal import exact
from clonos.causal.logged import task_fields
from clonos.errors import JobCodeError
from clonos.settings import Settings
from clonos.spark import arrow_results, forks, live_batches
from clonos.telemetry.logs import configure_logs

_work = pyspark.daemon.worker


def work(sock: socket.socket, authenticated: bool) -> int:
    """Serve one connection of Spark as PySpark's ``worker`` does, but without an error message at the end of a
    session.

    An idle worker may see the closed connection of its stopped JVM before the daemon stops the worker. PySpark's
    worker then tries to report that to the JVM, and prints a traceback of a broken pipe after a successful job.

    Returns:
        0 if the worker accepts another task, another number if it must exit.
    """
    try:
        return _work(sock, authenticated)
    except ConnectionError:
        return 1


def _checked(packed: list[tuple[Iterator[Row], StructType]]) -> list[tuple[Iterator[Row], StructType]]:
    """Return the rows that a stateful processor yields for a key; pyarrow would cut a 1.9 in them to an integer."""
    [(rows, spark_type)] = packed
    return [(_exact(rows, spark_type), spark_type)]


def _exact(rows: Iterator[Row], spark_type: StructType) -> Iterator[Row]:
    fit = _fit(spark_type)
    for row in rows:
        if fit is not None:
            try:
                fit(row.asDict(recursive=True))
            except exact.Unfit as error:
                raise carry(
                    JobCodeError(
                        f"A stateful processor yielded a row of which {error}.",
                        hint="yield values of the declared types of the output.",
                    )
                ) from error
        yield row


@functools.lru_cache(maxsize=16)
def _fit(spark_type: StructType) -> exact.Fit | None:
    return exact.of_arrow(to_arrow_type(spark_type, timezone="UTC"))


_RowSerializer = pyspark.sql.pandas.serializers.TransformWithStateInPySparkRowSerializer
_dump_rows = _RowSerializer.dump_stream


def _dump_exact_rows(serializer: Any, iterator: Iterator[Any], stream: Any) -> None:
    _dump_rows(serializer, map(_checked, iterator), stream)  # type: ignore[no-untyped-call]


_RowSerializer.dump_stream = _dump_exact_rows  # type: ignore[method-assign]
_ArrowSerializer = pyspark.sql.pandas.serializers.ArrowStreamSerializer
_dump_batches = _ArrowSerializer.dump_stream


def _dump_each_batch(serializer: Any, batches: Iterator[Any], stream: Any) -> None:
    """Let each result leave the worker at once: the input of a live query does not end for minutes."""
    _dump_batches(serializer, _flushed(batches, stream), stream)


def _flushed(batches: Iterator[Any], stream: Any) -> Iterator[Any]:
    for batch in batches:
        yield batch
        stream.flush()  # the writer asks for the next batch when it has written this one


_ArrowSerializer.dump_stream = _dump_each_batch  # type: ignore[method-assign,assignment]
arrow_results.install()
live_batches.install()


def load_sinks() -> None:
    """Import the sinks that need no optional packages. A worker imports another one with its first rows."""
    for sink in entry_points(group="clonos.sinks"):
        if not sink.extras:  # `name = "module:class [extra]"`
            sink.load()


if __name__ == "__main__":
    settings = Settings()
    configure_logs(settings.log_format, settings.log_level, fields=task_fields)
    load_sinks()
    # PySpark's worker collects garbage after each task. The objects imported here are never garbage: scanning them took
    # 25 to 45 ms of CPU per task, more than the task itself.
    gc.collect()
    gc.freeze()
    if address := os.environ.get(forks.ADDRESS):
        forks.serve(address)
    pyspark.daemon.worker = work
    pyspark.daemon.manager()
