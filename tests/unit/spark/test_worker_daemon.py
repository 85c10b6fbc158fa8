"""The daemon of Spark's Python workers: the output of its children."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from pyspark.sql import Row
from pyspark.sql.pandas.serializers import TransformWithStateInPySparkRowSerializer
from pyspark.sql.types import ArrayType, IntegerType, LongType, StructField, StructType

import clonos.spark.daemon  # noqa: F401  # changes the serializer
from clonos.carried_errors import CarriedError

CLOSED = """
import socket
import sys
import {module} as daemon

ours, jvm = socket.socketpair()
jvm.close()
sys.exit(daemon.{worker}(ours, True))
"""


SINKS = """
import sys
from clonos.spark.daemon import load_sinks

load_sinks()
looked_for = ("clonos_sinks.files.sink", "clonos_sinks.kafka.sink", "sqlalchemy")
print(*(name for name in looked_for if name in sys.modules))
"""


def test_sinks_with_optional_packages_are_not_imported() -> None:
    """They may be missing, and workers of jobs without them need not wait for their import."""
    run = subprocess.run([sys.executable, "-c", SINKS], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.split() == ["clonos_sinks.files.sink", "clonos_sinks.kafka.sink"]


def test_worker_without_a_jvm_exits_without_a_traceback() -> None:
    """As an idle worker does when the session is stopped: what PySpark printed was taken for a failure of the job."""
    environment = {**os.environ, "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"}  # as Spark starts its daemon
    spark, ours = (
        subprocess.run(
            [sys.executable, "-c", CLOSED.format(module=module, worker=worker)],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
        )
        for module, worker in (("pyspark.daemon", "worker"), ("clonos.spark.daemon", "work"))
    )
    assert "BrokenPipeError" in spark.stderr, "PySpark has fixed it: ours can go"
    assert (ours.returncode, ours.stderr) == (1, "")


def test_rows_of_a_stateful_processor_are_exact_or_refused() -> None:
    """PySpark converts them with pyarrow, which cuts 1.9 to 1."""
    schema = StructType([StructField("n", IntegerType()), StructField("more", ArrayType(LongType()))])

    def sent(*rows: Row) -> bytes:
        stream = io.BytesIO()
        TransformWithStateInPySparkRowSerializer(arrow_max_records_per_batch=100).dump_stream(
            iter([[(iter(rows), schema)]]), stream
        )
        return stream.getvalue()

    assert sent(Row(n=1, more=[2**53 + 1]), Row(n=None, more=None))
    for row in (Row(n=1.9, more=[]), Row(n=5 * 10**9, more=[]), Row(n=1, more=[0, 1.5])):
        with pytest.raises(CarriedError, match=r"yielded a row of which (n|more\[1\]) takes an integer"):
            sent(Row(n=7, more=[]), row)
