"""Reports the executors of a job on a Spark cluster. Pages and commands link to their logs."""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from clonos.spark.executors import executor_ids, registered_executors, wanted_executors
from clonos.telemetry.driver_events import Executor, Executors
from clonos.telemetry.events import Emit

_EVERY_S: Final = 3.0
_LISTED: Final = 20  # an event is a line of a file that the control plane stores in part


class ExecutorWatch:
    """Polls the executors that have registered with a session, and reports each change.

    Args:
        spark: The session.
        emit: Receives an ``executors`` event for each change.
        every_s: Pause before the first poll, and between two polls, in seconds.
    """

    def __init__(self, spark: SparkSession, emit: Emit, *, every_s: float = _EVERY_S) -> None:
        self._spark = spark
        self._emit = emit
        self._every_s = every_s
        self._reported: frozenset[str] | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start polling in a background thread. The first poll is not part of a takeover."""
        threading.Thread(target=self._poll, daemon=True, name="clonos-executors").start()

    def stop(self) -> None:
        """Stop polling, without waiting for a poll in progress, which then reports nothing."""
        self._stopped.set()

    def _poll(self) -> None:
        while not self._stopped.wait(self._every_s):
            self.poll_once()

    def poll_once(self) -> None:
        """Poll once, and report a change. If the JVM does not answer, nothing is reported."""
        try:
            if executor_ids(self._spark) == self._reported:
                return
            executors = registered_executors(self._spark)
            wanted = wanted_executors(self._spark)
        except Py4JError:  # the JVM ends; the driver reports that
            return
        # Spark's list may be a moment older than its ids: the next poll then compares and reads it again.
        described = frozenset(executor.id for executor in executors)
        if described != self._reported and not self._stopped.is_set():
            self._reported = described
            listed = [Executor(**asdict(executor)) for executor in executors[:_LISTED]]
            self._emit(Executors(wanted, len(executors), listed))
