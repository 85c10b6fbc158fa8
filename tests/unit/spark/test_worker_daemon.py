"""The daemon of Spark's Python workers: the output of its children."""

from __future__ import annotations

import os
import subprocess
import sys

CLOSED = """
import socket
import sys
import {module} as daemon

ours, jvm = socket.socketpair()
jvm.close()
sys.exit(daemon.{worker}(ours, True))
"""


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
